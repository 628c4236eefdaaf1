"""Statistics of an explore job as a table for people, and features chosen by them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.strategies.explore.statistics import FILE
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file as job_text

CORRELATIONS = ("pearson", "spearman", "cramers_v")
HEADINGS = ("column", "missing", "mean", "deviation", "5 %", "50 %", "95 %", "iv", "most with", "")
NUMBERS = ("missing", "mean", "deviation", "5 %", "50 %", "95 %", "iv")


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
                raise InvalidJob(f"--select: expected 'iv > 0.02, corr < 0.9', received {part!r}")
            found["iv" if read[1].startswith("iv") else "corr"] = float(read[2])
        return cls(**found)

    def of(self, statistics: dict[str, Any]) -> tuple[str, ...]:
        """Return the features, those with most information first."""
        by_iv = sorted(
            (-_iv(one), one["name"]) for one in statistics["columns"] if _iv(one) > self.iv
        )
        chosen: list[str] = []
        for _, name in by_iv:
            near: dict[str, float] = {}
            for other, r in together(statistics, name):
                near[other] = max(near.get(other, 0.0), abs(r))
            if all(near.get(other, 0.0) < self.corr or self.corr >= 1.0 for other in chosen):
                chosen.append(name)
        return tuple(chosen)


def untold(statistics: dict[str, Any], chosen: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the pairs of features of one kind whose correlation is not told."""
    if not any(statistics[kind] for kind in CORRELATIONS):
        return []  # as of a vertical job
    text = {one["name"] for one in statistics["columns"] if "quantiles" not in one}
    return [
        (a, b)
        for k, a in enumerate(chosen)
        for b in chosen[k + 1 :]
        if (a in text) == (b in text) and b not in dict(together(statistics, a))
    ]


def proposal(spelling: dict[str, Any]) -> str:
    """Return what makes names one that may be the same."""
    first, *others = spelling["names"]
    return f"write {', '.join(map(repr, others))} as {first!r} in all tables, if they are the same"


def file_of(folder: Path) -> Path | None:
    """Return the statistics of a run folder, if it has any: a vertical job's active party has."""
    return next(
        (own for own in (folder / FILE, *folder.glob(f"silos/*/{FILE}")) if own.is_file()), None
    )


def read(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the statistics of a run folder, and its job.

    Raises
    ------
    DataError
        There are none.
    """
    file = file_of(folder)
    if file is None:
        raise DataError(f'{folder}: no {FILE}: expected the run of a job of strategy "explore"')
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        found["columns"], found["label"]["classes"], found["pearson"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: expected the statistics of an explore job") from error
    return found, job_text.load(folder / "job.toml")


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


def overview(statistics: dict[str, Any], chosen: tuple[str, ...]) -> Iterator[tuple[object, ...]]:
    """Return a line for each column under :data:`HEADINGS`."""
    label = statistics["label"]["name"]
    for one in statistics["columns"]:
        quantiles = one.get("quantiles", {})
        most = max(
            (
                (abs(r), other, r)
                for other, r in together(statistics, one["name"])
                if other != label
            ),
            default=None,
        )
        few = "not told"
        yield (
            one["name"],
            few if one["missing"] is None else f"{one['missing']:,}",
            *(_short(one.get(key)) for key in ("mean", "deviation")),
            *(_short(quantiles.get(at, {}).get("value")) for at in ("0.05", "0.5", "0.95")),
            f"{_iv(one):.3f}" if "against_label" in one else "",
            "" if most is None else f"{most[1]} {most[2]:+.2f}",
            "selected" if one["name"] in chosen else "",
        )


def job_file(statistics: dict[str, Any], spec: bytes, chosen: tuple[str, ...], select: str) -> str:
    """Return a job file that trains on the chosen columns; raises InvalidJob without any."""
    if not chosen:
        raise InvalidJob(f"--select: no column has {select}")
    job = job_wire.parse(spec)
    if job.strategy != "explore":
        raise InvalidJob(
            "--job: the columns of a vertical job have no names here: each party chooses its own "
            "by its columns.json"
        )
    job.name = f"{job.name or 'explore'}-train"
    job.strategy = "histogram"
    job.ClearField("explore")
    job.ClearField("features")
    job.features.extend(chosen)
    text = job_text.dump(job.SerializeToString(deterministic=True))
    return f"# Features by {select}, of {statistics['rows']:,} rows of all silos.\n{text}"


def _iv(one: dict[str, Any]) -> float:
    return float(one.get("against_label", {}).get("iv", 0.0))


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
