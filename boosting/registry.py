"""What packages add by entry points: strategies, metrics, sources of tables, authenticators.

A distribution ships each kind as entry points of a group of its own; Hedgerow's are entries of the
same kind. Names of others have a dash and are none of ours, so that neither a package nor a later
version takes the name of another. Nothing of a package runs before a job, a setting or a policy
names it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from hedgerow.boosting.errors import InvalidJob

T = TypeVar("T")

_NAME = re.compile(r"[a-z][a-z0-9_]*(-[a-z0-9_]+)+")


@cache
def _shipped(group: str) -> dict[str, frozenset[EntryPoint]]:
    found: dict[str, frozenset[EntryPoint]] = {}
    for each in entry_points(group=group):
        if _NAME.fullmatch(each.name):
            found[each.name] = found.get(each.name, frozenset()) | {each}
    return found


@dataclass(frozen=True, eq=False)
class Registry:
    """All of one kind, of Hedgerow or of another distribution."""

    group: str
    """Of entry points."""
    noun: str
    own: Mapping[str, object]
    """Hedgerow's by name: each itself, or where it is imported from as an entry point says it."""

    def installed(self) -> tuple[str, ...]:
        """Return the names of all in this environment, Hedgerow's own first."""
        return (*self.own, *(name for name in _shipped(self.group) if name not in self.own))

    def is_foreign(self, name: str) -> bool:
        """Whether a name is one that only another distribution's may have."""
        return _NAME.fullmatch(name) is not None and name not in self.own

    def require(self, name: str) -> None:
        """Check that there is one of that name, without importing it.

        Raises
        ------
        InvalidJob
            There is none (the nearest known one is named), or several distributions ship one.
        """
        shipped = _shipped(self.group).get(name, ())
        if name in self.own or len(shipped) == 1:
            return
        if shipped:
            raise InvalidJob(
                f"{self.noun} {name!r} is shipped by several installed packages: keep one"
            )
        known = self.installed()
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        if self.is_foreign(name) and not near:
            hint = "it is a package of its own, which is not installed here"
        raise InvalidJob(f"{self.noun} {name!r} is not known; {hint}")

    def load(self, name: str, kind: type[T]) -> T:
        """Return the one of that name; its package is imported when it is first asked for.

        Raises
        ------
        InvalidJob
            As :meth:`require`, or the package that has it is not sound.
        """
        self.require(name)
        own = self.own.get(name)
        if isinstance(own, kind):
            return own
        if isinstance(own, str):
            entry = EntryPoint(name, own, self.group)
        else:
            [entry] = _shipped(self.group)[name]
        try:
            found = entry.load()
        except Exception as error:  # what a package of others does as it is imported is not known
            if own:
                raise
            raise InvalidJob(
                f"{self.noun} {name!r}: its package cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, kind):
            raise InvalidJob(f"{self.noun} {name!r}: {entry.value} is no {kind.__name__}")
        return found


NAMES = (
    "bagging",
    "fedxgbllr",
    "histogram",
    "fedga",
    "dp_tree",
    "private_boost",
    "secureboost",
    "simfl",
    "explore",
)
"""Names in job files of Hedgerow's own strategies, and of the packages in ``strategies``."""
STRATEGIES = Registry(
    "hedgerow.strategies",
    "strategy",
    {name: f"hedgerow.boosting.strategies.{name}:STRATEGY" for name in NAMES},
)
