"""Development tools: the embedded cluster, the chart generators, the demo and the test tiers."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
