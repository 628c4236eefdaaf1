"""How the C library keeps memory that was freed.

glibc gives every thread an arena of its own and, once a large block was freed, takes the next ones
of that size from its heaps, which hardly ever shrink. A process that handles blocks of ciphertexts
in several threads ends up with half as much again as it uses.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""
LARGE_BYTES = 1 << 20
ARENAS = 2


def return_freed_memory() -> bool:
    """Have blocks of a MiB and more returned to the system when they are freed, in this process.

    Call it when a process starts. The limits that it sets are for good: glibc no longer raises them
    as blocks are freed.

    Returns
    -------
    bool
        False where the C library has no such settings, which changes nothing else.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    wanted = ((_ARENA_MAX, ARENAS), (_MMAP_THRESHOLD, LARGE_BYTES), (_TRIM_THRESHOLD, LARGE_BYTES))
    done = [mallopt(parameter, value) for parameter, value in wanted]
    return all(answer == 1 for answer in done)
