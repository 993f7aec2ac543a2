"""What is reported about a training: `/progress`, `/metrics`, `/history`, trackers, a progress bar."""
