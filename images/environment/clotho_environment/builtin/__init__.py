"""The environments that come with the image: `letters`, and adapters for other libraries."""
