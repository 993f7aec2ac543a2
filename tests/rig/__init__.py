"""What integration tests and benchmarks of the operator share: the process, a pretended kubelet, a meddling proxy."""
