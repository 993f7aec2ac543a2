"""Runs the rollouts of an environment and submits their groups."""
