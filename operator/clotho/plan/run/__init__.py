"""What should happen next to a TrainingRun: one file per policy."""
