"""The controller's side of a machine: connections, processes and files through its steward."""
