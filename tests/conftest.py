"""Settings for every tier."""

from hypothesis import settings

settings.register_profile("clotho", deadline=None)  # a busy machine is no failure
settings.load_profile("clotho")
