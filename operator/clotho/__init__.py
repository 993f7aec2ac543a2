"""The control plane: TrainingRuns in, pods and an honest status out."""
