"""How long to wait before the next try: exponential, capped, and jittered so that pods do not march in step."""

import random
from collections.abc import Iterator, Mapping

_jitter = random.Random()  # noqa: S311 - spreads retries, keeps no secret


def backoff(first: float = 0.1, cap: float = 10.0) -> Iterator[float]:
    delay = first
    while True:
        yield delay * _jitter.uniform(0.5, 1.0)
        delay = min(cap, delay * 2)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asked us to wait; None where it does not say, or says it badly."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds <= 600 else None
