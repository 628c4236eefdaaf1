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
TRUTHS = "how truth is written"
_TRUTH = dict.fromkeys(["0", "n", "no", "f", "false"], 0) | dict.fromkeys(
    ["1", "y", "yes", "t", "true"], 1
)
_MOST_NAMES = 200
_MOST_WORDS = 8
_MOST_LETTERS = 64
_MOST_SLIPS = 20
"""Names with one rest that are compared."""
_MOST_PAIRS = 1_000
"""Of columns that may be one, which are compared."""
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
        if c != "_" and not c.isspace() and unicodedata.category(c) != "Cf":
            found.append(c)
    return "".join(found)


def spellings(names: Collection[str]) -> list[list[str]]:
    """Return the groups of several names that are :func:`folded` to the same."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(folded(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def truths(names: Collection[str]) -> list[list[str]]:
    """Return the names that mean false, and those that mean true, of a list with nothing else.

    Only where there are several: of numbers in one silo and truth values in another each is a
    category of its own.
    """
    words = {name: folded(name) for name in names}
    if not _TRUTH.keys() >= set(words.values()):
        return []
    groups = [[name for name in names if _TRUTH[words[name]] == k] for k in (0, 1)]
    return [group for group in groups if len({words[name] for name in group}) > 1]


def slips(names: Collection[str]) -> list[list[str]]:
    """Return the pairs of names of which one word of :data:`LEAST_LETTERS` has one edit.

    Numbers are no slips, and neither are words such as A and B. Of very many names none is told,
    and of long words none: a silo says any names, and time grows with their letters alone.
    """
    if len(names) > _MOST_NAMES:
        return []
    others: dict[tuple[str | int, ...], list[tuple[str, str]]] = {}
    for name in names:
        words = [folded(word) for word in re.split(r"[\s_-]+", name.strip())]
        if len(words) > _MOST_WORDS:
            continue
        for k, word in enumerate(words):  # words that one edit tells apart lose a letter to meet
            if LEAST_LETTERS <= len(word) <= _MOST_LETTERS and not re.search(r"\d", word):
                rest: tuple[str | int, ...] = (*words[:k], k, *words[k + 1 :])
                for less in {word} | {word[:j] + word[j + 1 :] for j in range(len(word))}:
                    others.setdefault((*rest, less), []).append((name, word))
    found = {
        (a, b)
        for group in others.values()
        for (a, x), (b, y) in combinations(group[:_MOST_SLIPS], 2)
        if x != y and _one_edit(x, y)
    }
    place = {name: k for k, name in enumerate(names)}
    return [list(pair) for pair in sorted(found, key=lambda two: [place[name] for name in two])]


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
    folds = {name: folded(name) for name in {*extra, *lacking}}
    by_fold = {folds[name]: name for name in lacking}
    for name in extra:
        if folds[name] in by_fold:
            found[name] = by_fold[folds[name]], ""
    meant = {other for other, _ in found.values()}
    left = [name for name in extra if name not in found]
    open_ = [name for name in lacking if name not in meant]
    if len(left) * len(open_) > _MOST_PAIRS:
        return found
    near = [(a, b) for a in left for b in open_ if _near(folds[a], folds[b])]
    words = {
        name: {folded(word) for word in of[name] or ()}
        for names, of in ((left, extra), (open_, lacking))
        for name in names
    }
    shared = [(a, b) for a in left for b in open_ if _share(words[a], words[b])]
    for why, alike in (("their names", near), ("their values", shared)):
        meant = {other for other, _ in found.values()}
        pairs = [
            (a, b) for a, b in alike
            if a not in found and b not in meant and (extra[a] is None) == (lacking[b] is None)
        ]  # fmt: skip
        for name, other in pairs:
            if all((name in pair) == (other in pair) for pair in pairs):  # of none other
                found[name] = other, why
    return found


def _near(a: str, b: str) -> bool:
    """Return whether two folded names are alike, with the same numbers in them."""
    if not LEAST_LETTERS - 1 <= min(len(a), len(b)) <= max(len(a), len(b)) <= _MOST_LETTERS:
        return False
    if re.findall(r"\d+", a) != re.findall(r"\d+", b):
        return False
    match = difflib.SequenceMatcher(None, a, b, autojunk=False)
    bounds = match.real_quick_ratio, match.quick_ratio, match.ratio
    return all(bound() >= _ALIKE for bound in bounds)


def _share(own: set[str], theirs: set[str]) -> bool:
    """Return whether two sets of categories share at least half of their names."""
    both = len(own & theirs)
    return both > 1 and both >= _SHARED * (len(own) + len(theirs) - both)


def _one_edit(a: str, b: str) -> bool:
    """Return whether a letter more, less or other, or two that changed places, makes b of a."""
    if len(a) > len(b):
        a, b = b, a
    k = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    if len(a) == len(b):
        swapped = a[:k] + a[k + 1 : k + 2] + a[k : k + 1] + a[k + 2 :]
        return a[k + 1 :] == b[k + 1 :] or swapped == b
    return len(b) == len(a) + 1 and a[k:] == b[k + 1 :]
