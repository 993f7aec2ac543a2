"""Kubernetes objects -> what the page shows. Pure, and without a clock: the browser counts the seconds."""
