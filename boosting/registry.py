"""All strategies: packages of Hedgerow or of another distribution, found by one kind of entry.

A distribution ships strategies as entry points of the group ``hedgerow.strategies``; Hedgerow's are
entries of the same kind. Names of others have a dash, which none of ours has, so that neither a
package nor a later version takes the name of another. :func:`hedgerow.boosting.ports.strategy_of`
loads an entry: nothing of a package runs before a job or a policy names it.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from hedgerow.boosting.errors import InvalidJob

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
"""Names in job files of Hedgerow's own, and of the packages in ``strategies``."""
GROUP = "hedgerow.strategies"
"""Of entry points."""
_NAME = re.compile(r"[a-z][a-z0-9_]*(-[a-z0-9_]+)+")


@cache
def _entries() -> dict[str, tuple[EntryPoint, ...]]:
    own = (
        EntryPoint(name, f"hedgerow.boosting.strategies.{name}:STRATEGY", GROUP) for name in NAMES
    )
    found: dict[str, tuple[EntryPoint, ...]] = {each.name: (each,) for each in own}
    for each in entry_points(group=GROUP):
        if _NAME.fullmatch(each.name):
            found[each.name] = tuple({*found.get(each.name, ()), each})
    return found


def installed() -> tuple[str, ...]:
    """Return the names of all strategies of this environment, Hedgerow's own first."""
    return tuple(_entries())


def is_foreign(name: str) -> bool:
    """Whether a name is one that only another distribution's strategy may have."""
    return _NAME.fullmatch(name) is not None


def entry_of(name: str) -> EntryPoint:
    """Return the entry of a strategy.

    Raises
    ------
    InvalidJob
        There is none of that name (the nearest known one is named), or several distributions ship
        one.
    """
    known = _entries()
    if len(known.get(name, ())) == 1:
        return known[name][0]
    if name in known:
        raise InvalidJob(f"strategy {name!r} is shipped by several installed packages: keep one")
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    if is_foreign(name) and not near:
        hint = "it is a package of its own, which is not installed here"
    raise InvalidJob(f"strategy {name!r} is not known; {hint}")
