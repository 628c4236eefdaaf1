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
HUGE_BYTES = 1 << 25
"""The most that glibc takes from its heaps."""
KEPT_BYTES = 1 << 26


def return_freed_memory() -> bool:
    """Have blocks of a MiB and more returned to the system when they are freed, in this process.

    Call it when a process starts. Its limits are permanent: glibc no longer raises them
    as blocks are freed.

    Returns
    -------
    bool
        False where the C library has no such settings, which changes nothing else.
    """
    return _set(ARENAS, LARGE_BYTES, LARGE_BYTES)


def keep_freed_memory() -> bool:
    """Have at most 64 MiB of freed blocks kept for the next ones, in this process.

    For processes that take and free vectors of megabytes many times a second, as the halves of
    horizontal jobs do at every level of a tree: a block fresh from the system costs a page fault
    for each 4 KiB of it, more than what is then done with it. One arena keeps them for all threads.

    Returns
    -------
    bool
        As :func:`return_freed_memory`.
    """
    return _set(1, HUGE_BYTES, KEPT_BYTES)


def release_freed_memory() -> None:
    """Return what is kept of freed blocks to the system once, holes between blocks in use too."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # as above
        return


def _set(arenas: int, mapped_bytes: int, kept_bytes: int) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    wanted = ((_ARENA_MAX, arenas), (_MMAP_THRESHOLD, mapped_bytes), (_TRIM_THRESHOLD, kept_bytes))
    done = [mallopt(parameter, value) for parameter, value in wanted]
    return all(answer == 1 for answer in done)
