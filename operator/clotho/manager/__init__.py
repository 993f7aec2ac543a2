"""The operator's process: settings, the work queue, Kopf's handlers, metrics, health and the main loop."""
