"""One file for each command of `python -m clotho_environment`, and `atropos.py` for Atropos environment files."""
