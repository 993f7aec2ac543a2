"""The page: runs, curves, samples and logs in a browser, read with the rights of the person who looks."""
