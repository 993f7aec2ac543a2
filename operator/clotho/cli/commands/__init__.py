"""One file for each command, named in arguments.py and imported only when it is called."""
