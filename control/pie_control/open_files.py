"""How many files this process may have open: connections of clients are files, too."""

from __future__ import annotations

import resource

MOST = 16_384


def allow(most: int = MOST) -> None:
    """Has this process open as many files as it needs, if the system lets it.

    A system's usual limit is 1 024, and a stranger who has no key can open as many connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
