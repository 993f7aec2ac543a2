"""vLLM, as a subprocess on the same GPUs or as a server elsewhere.

Read in this order: client (requests to it), completions (what is asked and answered), policies (how a version of the
policy gets there), engine (the process, and all of it together).
"""
