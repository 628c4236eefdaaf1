"""What a process of Hedgerow's imports, what it does without, and what that costs later."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType


class _Absent:
    """First of the import system's finders: says of some packages that they are not there.

    ``None`` in ``sys.modules`` would do for Python; Cython's import gives Arrow the ``None``.
    """

    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise :class:`ModuleNotFoundError` for an absent package; leave others to the next."""
        if name in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


_absent = _Absent()


def without(*packages: str) -> None:
    """Let libraries go on as where ``packages`` are not installed; for whole processes only.

    Where scikit-learn is installed, XGBoost imports it, and with it SciPy's statistics, for
    estimators that no process of ours uses: a second of CPU. Arrow does so with pandas, for
    conversions that we do not ask for. A program that imports Hedgerow may want both, so a library
    must not call this.
    """
    if _absent not in sys.meta_path:
        sys.meta_path.insert(0, _absent)
    _absent.packages.update(packages)


def with_again(package: str) -> None:
    """End :func:`without` for a package, for what needs it after all."""
    _absent.packages.discard(package)


_of_ours: list[bool] = []


def own_process() -> None:
    """Say that this process is a command of ours from its start, whose imports nobody unloads."""
    _of_ours.append(True)


@contextmanager
def staying() -> Iterator[None]:
    """Import what stays for the life of the process: the garbage collector never looks through it.

    Not while it grows, which takes a fifth of the CPU time of importing a thousand modules, and, in
    a process of ours, not later, which would delay an answer by tens of milliseconds.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _of_ours:
            gc.freeze()
        if was:
            gc.enable()


def versions_of(*names: str) -> dict[str, str]:
    """Return the versions of those distributions that are installed; nothing is imported."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
