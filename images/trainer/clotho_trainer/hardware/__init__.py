"""GPUs and processors of the pod."""
