"""The embedded cluster: a real Kubernetes on this machine, without Docker and without an image registry."""
