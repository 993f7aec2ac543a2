"""Training on this pod: the GRPO objective over packed rows, one optimiser."""
