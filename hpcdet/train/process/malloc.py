"""Memory that one step frees, and the next one asks for again, stays with the process.

glibc gives memory that lies free at the end of its heap back to the system. Asked for again, it
comes page by page, each by a fault that clears it. Whether that happens at every step is chance,
for it depends on what else lies on the heap: with gradients of 5 MB, 500 to 1200 faults were
counted in each step, and next to none when the memory is kept.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h
_KEPT_BYTES = 2**30
_LARGEST_BYTES = 2**25
"""What is larger has pages of its own, and gives them back at once. It is the most that a glibc
before 2.35 takes on 64 bits, half of a heap of its; it refuses anything above."""
_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep(environment: Mapping[str, str] = os.environ) -> bool:
    """Keep up to 1 GiB of freed memory; False if that cannot be set, or the user has set it.

    Where another allocator than glibc's is loaded, nothing changes.
    """
    if any(name in environment for name in _USERS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # no glibc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
