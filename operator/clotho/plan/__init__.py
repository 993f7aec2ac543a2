"""What should happen next to a run, decided without I/O and with the clock passed in."""
