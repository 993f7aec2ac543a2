"""Scored groups from bytes: checked row by row, kept as the JSON that was sent."""
