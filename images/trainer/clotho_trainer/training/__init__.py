"""The loop from a batch of scored groups to an optimiser step and a checkpoint."""
