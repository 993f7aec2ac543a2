"""The fast engine: CUDA graphs and paged attention over the live weights, the adapter never merged.

Read in this order: linear and weights (the parameters), reference_ops and kernels (the operations, twice), decoder (a
step on the device), memory (how many blocks fit), engine (executes what the scheduler decides).
"""
