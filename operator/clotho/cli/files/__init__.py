"""Local files in, manifests out; no cluster is needed."""
