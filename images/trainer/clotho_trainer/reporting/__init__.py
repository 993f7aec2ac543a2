"""What is reported about a training: `/progress`, `/metrics`, Weights & Biases, a progress bar."""
