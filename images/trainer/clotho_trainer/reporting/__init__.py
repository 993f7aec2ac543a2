"""How a training is seen from outside: `/progress`, `/metrics`, Weights & Biases, a progress bar."""
