"""TrainingRun in, Kubernetes manifests out. No I/O."""
