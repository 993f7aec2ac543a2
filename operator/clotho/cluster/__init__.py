"""All I/O with the cluster: credentials, the API client, caches, the one writer, probes and the lease."""
