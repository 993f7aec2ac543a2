"""What the pods of a run agree on: the config file, ports, variables, progress and the termination message."""
