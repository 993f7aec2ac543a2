"""What every engine is made of: requests, sequences, the sampler, the decode thread."""
