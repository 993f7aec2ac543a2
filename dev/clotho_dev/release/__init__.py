"""Publishing: images and the chart into a registry, and the versions of a release."""
