"""Runs unchanged Atropos environment files: a child process behind a gateway that speaks the run's protocol for it."""
