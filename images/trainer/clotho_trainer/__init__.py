"""The trainer of a run: it takes scored groups, moves the policy, and serves the very weights it is training."""
