"""Names that people write differently: of columns and of categories, in several silos."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from unicodedata import combining

FOLDED = "case, blanks, underscores or accents"
LEAST_LETTERS = 6
"""Letters of a word of which one may be a slip."""
_MOST_NAMES = 200
_ALIKE = 0.85
_SHARED = 0.5


def folded(name: str) -> str:
    """Return a name without what people write differently: case, blanks, underscores, accents.

    Accents of Latin letters only: in other scripts a mark makes another letter.
    """
    found: list[str] = []
    base = ""
    for c in unicodedata.normalize("NFKD", name.casefold()):
        if not combining(c):
            base = c
        elif base < "\u0250":  # the end of Latin letters, extended
            continue
        if c not in "_\ufeff" and not c.isspace():
            found.append(c)
    return "".join(found)


def spellings(names: Collection[str]) -> list[list[str]]:
    """Return the groups of several names that are :func:`folded` to the same."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(folded(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def slips(names: Collection[str]) -> list[list[str]]:
    """Return the pairs of names of which one word of :data:`LEAST_LETTERS` has one edit.

    Numbers are no slips, and neither are words such as A and B; of very many names none is told.
    """
    if len(names) > _MOST_NAMES:
        return []
    others: dict[tuple[str | int, ...], list[tuple[str, str]]] = {}
    for name in names:
        words = [folded(word) for word in re.split(r"[\s_-]+", name.strip())]
        for k, word in enumerate(words):  # by the other words, so that few pairs are compared
            if len(word) >= LEAST_LETTERS and not re.search(r"\d", word):
                others.setdefault((*words[:k], k, *words[k + 1 :]), []).append((name, word))
    return [
        [a, b]
        for group in others.values()
        for (a, x), (b, y) in combinations(group, 2)
        if x != y and _one_edit(x, y)
    ]


def renamed(
    extra: Mapping[str, Sequence[str] | None], lacking: Mapping[str, Sequence[str] | None]
) -> dict[str, tuple[str, str]]:
    """Return which columns of a silo may be others' under another name, and by what.

    Parameters
    ----------
    extra, lacking : Mapping
        Columns that the silo has and others do not, and the other way round, with their
        categories; None of numbers.

    Returns
    -------
    dict
        By the silo's name: the others' name, and "" where they are :func:`folded` to the same,
        else what is alike. A column is meant once at most.
    """
    found: dict[str, tuple[str, str]] = {}
    by_fold = {folded(name): name for name in lacking}
    for name in extra:
        if folded(name) in by_fold:
            found[name] = by_fold[folded(name)], ""
    for why in ("their names", "their values"):
        pairs = [
            (name, other) for name, own in extra.items() for other, theirs in lacking.items()
            if name not in found and other not in {meant for meant, _ in found.values()}
            and (own is None) == (theirs is None)
            and (_near(name, other) if why == "their names" else _share(own, theirs))
        ]  # fmt: skip
        for name, other in pairs:
            if all((name in pair) == (other in pair) for pair in pairs):  # of none other
                found[name] = other, why
    return found


def _near(a: str, b: str) -> bool:
    a, b = folded(a), folded(b)
    numbers = [re.findall(r"\d+", one) for one in (a, b)]
    long_enough = min(len(a), len(b)) >= LEAST_LETTERS - 1
    close = difflib.SequenceMatcher(None, a, b, autojunk=False).ratio() >= _ALIKE
    return long_enough and numbers[0] == numbers[1] and close


def _share(own: Sequence[str] | None, theirs: Sequence[str] | None) -> bool:
    """Return whether two lists of categories share at least half of their names."""
    a, b = ({folded(name) for name in names or ()} for names in (own, theirs))
    return len(a & b) > 1 and len(a & b) >= _SHARED * len(a | b)


def _one_edit(a: str, b: str) -> bool:
    """Return whether a letter more, less or other, or two that changed places, makes b of a."""
    if len(a) > len(b):
        a, b = b, a
    k = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    if len(a) == len(b):
        swapped = a[:k] + a[k + 1 : k + 2] + a[k : k + 1] + a[k + 2 :]
        return a[k + 1 :] == b[k + 1 :] or swapped == b
    return len(b) == len(a) + 1 and a[k:] == b[k + 1 :]
