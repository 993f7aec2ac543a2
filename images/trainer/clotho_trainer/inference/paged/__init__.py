"""The fast engine: CUDA graphs and paged attention over the live weights, the adapter never merged.

Read in this order: linear and weights (what is computed with), plain and kernels (the operations, twice), decoder (a
step on the device), pages (who owns which memory), engine (who is served when).
"""
