"""What a data scientist would not expect of a schema, and what of it leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import shorten

from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.spelling import FOLDED, TRUTHS, slips, spellings, truths

LEAST_ROWS = 20
NEAR_UNIQUE = 0.5
"""Share of different texts above which a column tells rows apart more than it tells about them."""
SHOWN = 30
"""Characters of a value that are shown, in one line."""
# Possessive where parts have characters in common: silos' texts come to the coordinator, too.
_NUMBER = r"\s*+[€$£¥]?\s*+[+-]?[\d.,' ]*\d\.?([eE][+-]?\d+)?\s*+[%€$£¥]?\s*+"
_PLAIN = r"\s*+[+-]?(\d++\.?\d*+|\.\d++)([eE][+-]?\d++)?\s*+"
_MARKED = r"[.,' %€$£¥eE]"
_MARKS = 5
"""Different texts below which those beside numbers are marks of gaps, such as ``?``."""
_MOST_NAMED = 10


def alike(schema: Schema) -> list[str]:
    """Return a sentence for each list of names of which some may be the same, differently spelt."""
    found = []
    for where, groups, how in near_names(schema):
        shown = "; ".join(", ".join(map(repr, group)) for group in groups[:3])
        more = f" and {len(groups) - 3} more" if len(groups) > 3 else ""
        mend = "write them the same way in all tables"
        if where.startswith("column"):
            mend += ", or list in [columns] levels those that count (others are then missing)"
        found.append(f"{where}: names that differ by {how} only: {shown}{more}; {mend}")
    return found


def near_names(schema: Schema) -> list[tuple[str, list[list[str]], str]]:
    """Return where names may be the same, the groups of them, and by what those differ."""
    lists = [(f"column '{feature.name}'", feature.categories or ()) for feature in schema.features]
    return [
        (where, groups, how)
        for where, names in [*lists, (f"label '{schema.label}'", schema.classes)]
        for groups, how in (
            (spellings(names), FOLDED),
            (slips(names), "a letter"),
            (truths(names), TRUTHS),
        )
        if groups
    ]


def unusual_columns(schema: Schema, n_rows: int) -> list[str]:
    """Return what a data scientist would not expect of features in a schema, and what to do.

    Parameters
    ----------
    n_rows : int
        Of all silos; 0 where nobody knows.
    """
    found = alike(schema)
    for feature in schema.features:
        words = feature.categories or ()
        told = [*free_text(len(words) if n_rows else 0, n_rows), *numbers_in(words)]
        found += [f"column '{feature.name}': {one}" for one in told]
    return found


def free_text(distinct: int, n_rows: int) -> Iterator[str]:
    """Yield a warning where texts tell rows apart more than they tell about them."""
    if distinct > NEAR_UNIQUE * max(n_rows, LEAST_ROWS):
        yield (
            f"likely names or free text: {distinct:,} different texts in {n_rows:,} rows, "
            "which all silos would learn"
        )


def numbers_in(words: Sequence[str]) -> Iterator[str]:
    """Yield a warning where texts, of which the first is the commonest, are meant as numbers."""
    others = [word for word in words if not re.fullmatch(_NUMBER, word)]
    if others and len(others) < _MARKS < len(words) - len(others):
        shown = ", ".join(repr(shorten(word, SHOWN, placeholder="…")) for word in others)
        yield f"numbers beside {shown}: read as text; leave the cell empty where there is none"
    elif words and not others and re.search(_MARKED, words[0].strip()):
        plain = all(re.fullmatch(_PLAIN, word) for word in words)
        mend = "store them as numbers" if plain else "write them without marks and units"
        yield f"numbers such as {words[0][:SHOWN]!r} are text, so that each is a category: {mend}"


def named_categories(schema: Schema) -> tuple[str, ...]:
    """Return a note of the features whose categories all silos learn by name, the largest first."""
    sizes = zip(schema.n_categories, schema.names, strict=True)
    found = [f"{name} ({n:,})" for n, name in sorted(sizes, key=lambda e: (-e[0], e[1])) if n]
    if len(found) > _MOST_NAMED:
        found[_MOST_NAMED:] = [f"{len(found) - _MOST_NAMED} more"]
    return (f"all silos learn the categories of {', '.join(found)}",) if found else ()
