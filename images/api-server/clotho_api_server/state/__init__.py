"""What the server keeps: groups, batches, leases and registrations, durable on disk."""
