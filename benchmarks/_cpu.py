"""CPU seconds of processes, as Linux counts them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def seconds_of(pid: int) -> float:
    """Return what a process has used by now, in all of its threads."""
    user, system = _fields(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def seconds_below(pid: int) -> dict[int, float]:
    """Return what each process that descends from one has used by now, the oldest first."""
    begun: dict[int, tuple[int, int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = _fields(int(folder.name))
            begun[int(folder.name)] = (int(fields[19]), int(fields[1]))
    own, found = {pid}, dict[int, float]()
    for child, (_, parent) in sorted(begun.items(), key=lambda one: one[1][0]):
        if parent in own:
            own.add(child)
            with suppress(OSError):
                found[child] = seconds_of(child)
    return found
