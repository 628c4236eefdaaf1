"""Columns that silos tell operators, and a job file's text with those that were chosen of them."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hedgerow.boosting.errors import InvalidJob
from hedgerow.services.wire.job_view import SiloView

MOST_SHOWN = 1000
_TABLE = re.compile(r"^\s*\[", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ToldColumn:
    """A column of at least one silo."""

    name: str
    owners: tuple[str, ...]
    label: bool
    """Whether the text has it as its label."""
    feature: bool
    """Whether the text has it among its features."""


@dataclass(frozen=True, slots=True)
class ToldColumns:
    """What silos tell: columns that most of them have come first."""

    columns: tuple[ToldColumn, ...]
    silos: tuple[str, ...]
    """Who tells any."""
    silent: tuple[str, ...]
    """Who is connected and tells none."""
    left_out: int


def columns_of(silos: Iterable[SiloView], text: str) -> ToldColumns:
    """Return what silos tell, beside what a job file's text has of it."""
    there = [one for one in silos if one.alive]
    number = Counter(name for one in there for name in dict.fromkeys(one.columns))
    order = sorted(number, key=lambda name: -number[name])  # else as the first silo has them
    label, features = _chosen(text)
    found = tuple(
        ToldColumn(
            name,
            tuple(one.name for one in there if name in one.columns),
            name == label,
            name in features,
        )
        for name in order[:MOST_SHOWN]
    )
    return ToldColumns(
        found,
        tuple(one.name for one in there if one.columns),
        tuple(one.name for one in there if not one.columns),
        len(order) - len(found),
    )


def with_columns(text: str, label: str, features: Sequence[str]) -> str:
    """Return a job file's text with another label and features; without any, all are taken.

    Every other line stays as it is.

    Raises
    ------
    InvalidJob
        The text is no TOML, or has these keys in a form that is left to people.
    """
    try:
        before = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidJob(f"job: not TOML: {error}") from None
    wanted: dict[str, object] = {}
    if label:
        wanted["label"] = label
    own = wanted.get("label", before.get("label"))
    wanted["features"] = [name for name in features if name != own]
    head = _TABLE.search(text)
    top, rest = (text, "") if head is None else (text[: head.start()], text[head.start() :])
    for key, value in wanted.items():
        top = _with_line(top, key, value)
    made = top + rest
    expected = {**before, **wanted}
    if not wanted["features"]:
        del expected["features"]
    try:
        same = tomllib.loads(made) == expected
    except (tomllib.TOMLDecodeError, RecursionError):
        same = False
    if not same:
        raise InvalidJob("label, features: expected each on lines of its own; write them by hand")
    return made


def _with_line(top: str, key: str, value: object) -> str:
    """Return the keys before a file's first table with another value of one; none if empty."""
    line = f"{key} = {json.dumps(value, ensure_ascii=False)}\n" if value else ""
    there = re.search(
        rf"^{key}[ \t]*=[ \t]*(?:\[[^\]]*\]|[^\n]*)[^\n]*\n?", top, flags=re.MULTILINE
    )
    if there is not None:
        return top[: there.start()] + line + top[there.end() :]
    body = top.rstrip("\n")
    return f"{body}\n{line}{top[len(body) + 1 :]}" if body and line else line + top


def _chosen(text: str) -> tuple[str, tuple[str, ...]]:
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return "", ()
    label, features = found.get("label", ""), found.get("features", [])
    return (
        label if isinstance(label, str) else "",
        tuple(features) if isinstance(features, list) else (),
    )
