"""Features chosen by the statistics of an explore job: by its rule, or the list that it gives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.boosting.errors import DataError, InvalidJob

FILE = "statistics.json"
"""File of a run folder."""
SELECT = "iv > 0.02, corr < 0.9"
"""Which columns are features where nothing else is asked for."""
CORRELATIONS = ("pearson", "spearman", "cramers_v")
ANONYMOUS = "anonymous"
"""Kind of another party's column in the statistics of a vertical job."""
NAMELESS = (
    "the columns of a vertical job have no names here: each party chooses its own by its "
    "columns.json"
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which columns are features: enough information, and none that says what another says."""

    iv: float = 0.0
    """Information value that a feature is above."""
    corr: float = 1.0
    """Correlation with a feature of more information that a feature is below."""

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Return the selection of a text such as ``iv > 0.02, corr < 0.9``; raises InvalidJob."""
        found: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            read = re.fullmatch(r"(iv\s*>|corr\s*<)\s*([0-9]*\.?[0-9]+)", part)
            if read is None:
                raise InvalidJob(f"select: expected 'iv > 0.02, corr < 0.9', received {part!r}")
            found["iv" if read[1].startswith("iv") else "corr"] = float(read[2])
        return cls(**found)

    def of(self, statistics: dict[str, Any]) -> tuple[str, ...]:
        """Return the features, those with most information first."""
        by_iv = sorted(
            (-information(one), one["name"])
            for one in statistics["columns"]
            if information(one) > self.iv
        )
        chosen: list[str] = []
        for _, name in by_iv:
            near: dict[str, float] = {}
            for other, r in together(statistics, name):
                near[other] = max(near.get(other, 0.0), abs(r))
            if all(near.get(other, 0.0) < self.corr or self.corr >= 1.0 for other in chosen):
                chosen.append(name)
        return tuple(chosen)


def features_by(given: Mapping[str, Any], label: str, folder: Path) -> list[str]:
    """Return the features of a job file's table ``[features]``.

    The rule reads what an explore job has told, where the job file is, before it is signed: a
    signed job has a list, and a selection tells nobody more than that table.

    Parameters
    ----------
    given : Mapping
        ``explored``, the run folder of an explore job, and ``select``.
    label : str
        Column that the job predicts.
    folder : path
        Where a relative ``explored`` begins.

    Raises
    ------
    InvalidJob
        Another key, no such run, one of another label, or no feature is left.
    """
    if unknown := sorted(set(given) - {"select", "explored"}):
        raise InvalidJob(
            f"features.{unknown[0]}: expected a list of columns, or a table of select and explored"
        )
    if "explored" not in given:
        raise InvalidJob(
            "features.explored: expected the run folder of an explore job, which select reads; "
            "received none"
        )
    try:
        rule, run = str(given.get("select", SELECT)), folder / given["explored"]
        statistics = statistics_of(run)
    except (TypeError, DataError) as error:
        raise InvalidJob(f"features.explored: {error}") from error
    own = statistics["label"]["name"]
    if own != label:
        raise InvalidJob(
            f"features.explored: expected a run that compared columns with the label '{label}', "
            f"{run} has '{own}'"
        )
    if any(one["kind"] == ANONYMOUS for one in statistics["columns"]):
        raise InvalidJob(f"features.explored: {NAMELESS}")
    chosen = Selection.parse(rule).of(statistics)
    if not chosen:
        raise InvalidJob(f"features.select: no column of {run} has {rule}")
    return list(chosen)


def file_of(folder: Path) -> Path | None:
    """Return the statistics of a run folder, if it has any: a vertical job's active party has."""
    return next(
        (own for own in (folder / FILE, *folder.glob(f"silos/*/{FILE}")) if own.is_file()), None
    )


def statistics_of(folder: Path) -> dict[str, Any]:
    """Return the statistics of a run folder; raises DataError without any."""
    file = file_of(folder)
    if file is None:
        raise DataError(f'{folder}: no {FILE}: expected the run of a job of strategy "explore"')
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        found["columns"], found["label"]["classes"], found["label"]["name"]
        [found[kind] for kind in CORRELATIONS]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: expected the statistics of an explore job") from error
    return found


def together(statistics: dict[str, Any], name: str) -> Iterator[tuple[str, float]]:
    """Return the columns that a column is correlated with, as far as that is told."""
    for kind in CORRELATIONS:
        table = statistics[kind]
        for other, r in table.get(name, {}).items():
            if r is not None:
                yield other, r
        for other, row in table.items():
            if row.get(name) is not None:
                yield other, row[name]


def information(one: Mapping[str, Any]) -> float:
    """Return a column's information value, 0 where none is told."""
    return float(one.get("against_label", {}).get("iv", 0.0))
