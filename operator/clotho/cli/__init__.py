"""What people see of a run in a terminal."""
