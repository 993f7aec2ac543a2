"""What authors of environments use: the base class, the sampling client, and groups of scored attempts."""
