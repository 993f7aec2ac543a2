"""Where scored groups come from: the API server, or sampling from a dataset in the trainer."""
