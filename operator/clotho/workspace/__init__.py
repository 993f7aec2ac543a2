"""One namespace as the command line and agents use it: read, create and change objects, draft runs, wait for tests."""
