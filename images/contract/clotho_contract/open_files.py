"""How many files and connections a process may have open."""

import resource
from typing import Final

ENOUGH: Final = 65_536  # more connections than one client has ports for


def raise_limit() -> None:
    """Many nodes start containers with 1,024. Each request in flight is a connection: beyond it probes fail, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
