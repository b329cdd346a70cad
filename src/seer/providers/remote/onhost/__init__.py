"""What runs on a remote host. Standard library and the code archive only."""
