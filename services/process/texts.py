"""Texts that others wrote: what of them may be shown, and the addresses among them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, count

from hedgerow.boosting.errors import FederationError


def visible(text: str, keep: str = "\n\t") -> str:
    """Return a text whose control characters, but ``keep``, are spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Return a text in which nothing begins a line, moves a cursor or turns letters around."""
    return visible(text, keep="")


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; an IPv6 address is in brackets.

    Raises
    ------
    FederationError
        It is not of this form.
    """
    found = re.fullmatch(r"(?:\[([^\s/\[\]]+)\]|([^\s/:\[\]]+)):([0-9]{1,5})", address)
    if found is None or int(found[3]) > 65535:
        raise FederationError(f"expected HOST:PORT, received {address!r}")
    return found[1] or found[2], int(found[3])


def told_apart(names: Sequence[str], most: int) -> dict[str, str]:
    """Return what is shown of each name: about ``most`` characters, and no two alike.

    Of names that begin alike what follows where they differ is shown; what is alike then has a
    number.
    """
    found: dict[str, str] = {}
    begins = {
        name: name if len(name) <= most else f"{name[: most - 1].rstrip()}…" for name in names
    }
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, begin in begins.items():
        groups[begin].append(name)
    taken: set[str] = set()
    for name, begin in begins.items():
        alike, shown = groups[begin], begin
        if alike[1:]:
            first, last = min(alike), max(alike)  # what these share, all do
            shared = next((k for k, c in enumerate(first) if last[k] != c), len(first))
            end = name[shared:].lstrip(" ,;:")[: most - most // 3 - 1].rstrip() or "(no more)"
            shown = f"{name[: min(shared, max(most - len(end) - 1, 1))].rstrip()}…{end}"
        numbered = (f"{shown} ({k})" for k in count(2))
        found[name] = next(one for one in chain([shown], numbered) if one not in taken)
        taken.add(found[name])
    return found
