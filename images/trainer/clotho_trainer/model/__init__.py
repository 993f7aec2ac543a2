"""The policy as modules: loading, adapters, quantised layers, and the lock between training and decoding."""
