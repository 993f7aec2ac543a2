"""Decoding with the model's own modules."""
