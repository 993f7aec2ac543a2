"""Environments of other libraries, seen as environments of this kit."""
