"""What surrounds environment code in its pod: probes, signals, metrics, child processes."""
