"""What runs on a host elsewhere. Standard library and the code archive only."""
