"""The environment kit: turn an item into a scored group, the runner does the rest."""
