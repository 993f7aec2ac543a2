"""The trajectory API server: scored groups in, durable leased batches out."""
