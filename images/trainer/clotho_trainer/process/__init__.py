"""The pod: its servers, one training from loading to the termination message, and what is checked before."""
