"""Fault campaigns: the operator's whole life of a run, repeated with one fault at a time; docs/reliability.md."""
