"""Runs without environments: prompts from a dataset, rewards and tools from the user's own Python."""
