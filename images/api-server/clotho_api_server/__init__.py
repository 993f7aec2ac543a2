"""The pod that collects scored trajectories from environments and hands batches to the trainer."""
