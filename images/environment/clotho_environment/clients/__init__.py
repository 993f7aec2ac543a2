"""HTTP to the other pods of the run."""
