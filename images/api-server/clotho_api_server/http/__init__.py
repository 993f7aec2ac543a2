"""Routes, access and request bodies: what clients see."""
