"""Statistics of an explore job as a table for people, and features chosen by them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.selection import CORRELATIONS, NAMELESS, information, statistics_of, together
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file as job_text

HEADINGS = ("column", "missing", "mean", "deviation", "5 %", "50 %", "95 %", "iv", "most with", "")
NUMBERS = ("missing", "mean", "deviation", "5 %", "50 %", "95 %", "iv")


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


def read(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the statistics of a run folder, and its job; raises DataError without any."""
    return statistics_of(folder), job_text.load(folder / "job.toml")


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
            f"{information(one):.3f}" if "against_label" in one else "",
            "" if most is None else f"{most[1]} {most[2]:+.2f}",
            "selected" if one["name"] in chosen else "",
        )


def job_file(statistics: dict[str, Any], spec: bytes, chosen: tuple[str, ...], select: str) -> str:
    """Return a job file that trains on the chosen columns; raises InvalidJob without any."""
    if not chosen:
        raise InvalidJob(f"select: no column has {select}")
    job = job_wire.parse(spec)
    if job.strategy != "explore":
        raise InvalidJob(NAMELESS)
    job.name = f"{job.name or 'explore'}-train"
    job.strategy = "histogram"
    job.ClearField("explore")
    job.ClearField("features")
    job.features.extend(chosen)
    text = job_text.dump(job.SerializeToString(deterministic=True))
    return f"# Features by {select}, of {statistics['rows']:,} rows of all silos.\n{text}"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
