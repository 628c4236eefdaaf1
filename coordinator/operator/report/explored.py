"""What an explore job has told of the silos' tables, as plots and a table of the report."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from hedgerow.boosting.selection import ANONYMOUS
from hedgerow.coordinator.operator.report.drawing import (
    Columns,
    Figure,
    Row,
    feature_bars,
    number,
    of_number,
    of_text,
    text,
    tips,
    values,
)
from hedgerow.coordinator.operator.report.runs import FinishedRun

MOST_COLUMNS = 30
"""Columns of a heat map: those that go most with others."""
_SHOWN: Columns = [
    ("column", of_text("feature")),
    ("rows", of_number("rows", ",d")),
    ("missing", lambda row: text("not told") if row["missing"] is None else number(row["missing"])),
    *((key, of_number(key, ".4g")) for key in ("mean", "deviation", "5 %", "50 %", "95 %")),
    ("iv", of_number("iv", ".3f")),
    ("cells", of_text("cells")),
]  # fmt: skip
_KINDS = {
    "pearson": ("Correlation", "Pearson's correlation of numeric columns"),
    "spearman": ("Correlation of ranks", "Spearman's correlation of numeric columns, by bins"),
    "cramers_v": ("Association", "Cramér's V of text columns"),
}


def explored(runs: Sequence[FinishedRun]) -> list[Figure]:
    """Return the statistics of the runs that have some."""
    found: list[Figure] = []
    chosen = {run.label: names for run in runs if (names := _features(run))}
    for k, run in enumerate(runs):
        if run.statistics is None:
            continue
        of = f" of {run.label}" if len(runs) > 1 else ""
        found += [_columns(run.statistics, f"explore-{k}", of, chosen)]
        found += _together(run.statistics, f"explore-{k}", of)
    return found


def _features(run: FinishedRun) -> list[str]:
    """Return the features that the job of a run that trains lists; none where it takes all."""
    try:
        listed = tomllib.loads(run.job_text).get("features", [])
    except (tomllib.TOMLDecodeError, RecursionError):
        return []
    return listed if run.statistics is None and isinstance(listed, list) else []


def _columns(
    statistics: dict[str, Any], key: str, of: str, chosen: Mapping[str, Sequence[str]]
) -> Figure:
    """Return the information values, and a row for each column, with the runs that train on it."""
    rows: list[Row] = []
    for one in statistics["columns"]:
        quantiles = one.get("quantiles", {})
        cells = "; ".join(f"{cell['name']}: {cell['rows']:,}" for cell in one["cells"])
        rows.append({
            "feature": one["name"], "rows": one["rows"], "missing": one["missing"],
            "mean": one.get("mean"), "deviation": one.get("deviation"),
            **{f"{at} %": quantiles.get(f"{at / 100:g}", {}).get("value") for at in (5, 50, 95)},
            "iv": one.get("against_label", {}).get("iv"), "cells": cells,
            "feature of": ", ".join(run for run, own in chosen.items() if one["name"] in own),
        })  # fmt: skip
    label = statistics["label"]["name"]
    lead = f"Information value of each column about {label}: below 0.02 next to nothing."
    bars, said = feature_bars(
        rows, alt.X("iv:Q", title="information value"), "iv", "feature", (),
        tips("feature:N", alt.Tooltip("iv:Q", format=".3f")),
    )  # fmt: skip
    lead += said
    for run, own in chosen.items():
        taken = [row for row in rows if row["feature"] in own]
        ivs = sorted(row["iv"] for row in taken if row["iv"] is not None)
        least = f", of information values from {ivs[0]:.3g} to {ivs[-1]:.3g}" if ivs else ""
        lead += f" {run} was trained on {len(taken)} of these {len(rows)} columns{least}."
    if all(one["kind"] != ANONYMOUS for one in statistics["columns"]):  # a vertical job's are exact
        lead += f" Counts are multiples of {statistics['min_cell']}, of all silos together."
    shown = [*_SHOWN, ("feature of", of_text("feature of"))] if chosen else _SHOWN
    return Figure.of(f"{key}-columns", f"Columns{of}", lead, bars, shown, rows)


def _together(statistics: dict[str, Any], key: str, of: str) -> list[Figure]:
    """Return a heat map for each kind of correlation that is told."""
    found = []
    for kind, (title, lead) in _KINDS.items():
        pairs = [
            (a, b, r)
            for a, row in statistics[kind].items()
            for b, r in row.items()
            if r is not None
        ]
        if not pairs:
            continue
        most: dict[str, float] = {}
        for a, b, r in pairs:
            for name in (a, b):
                most[name] = max(most.get(name, 0.0), abs(r))
        kept = sorted(most, key=lambda name: -most[name])[:MOST_COLUMNS]
        names = sorted(kept, key=[*most].index)  # in the order of the table
        rows: list[Row] = [
            {"first": one, "second": other, "r": r}
            for a, b, r in pairs
            for one, other in ((a, b), (b, a))
            if a in names and b in names
        ]
        if len(most) > len(names):
            lead += f"; the {len(names)} of {len(most)} columns that go most with another"
        axis = alt.Axis(labelLimit=160, labelAngle=-60)
        chart = (
            alt.Chart(values(rows), width="container", height=40 + 18 * len(names))
            .mark_rect()
            .encode(
                x=alt.X("first:N", sort=names, title=None, axis=axis),
                y=alt.Y("second:N", sort=names, title=None, axis=alt.Axis(labelLimit=160)),
                color=alt.Color(
                    "r:Q", title=None, scale=alt.Scale(domain=[-1, 0, 1], scheme="redblue"),
                    legend=alt.Legend(format=".1f"),
                ),
                tooltip=tips("first:N", "second:N", alt.Tooltip("r:Q", format="+.2f")),
            )
        )  # fmt: skip
        columns: Columns = [
            ("column", of_text("first")), ("with", of_text("second")),
            ("r", of_number("r", "+.3f")),
        ]  # fmt: skip
        strongest = sorted(
            ({"first": a, "second": b, "r": r} for a, b, r in pairs), key=lambda row: -abs(row["r"])
        )
        found.append(
            Figure.of(f"{key}-{kind}", f"{title}{of}", f"{lead}.", chart, columns, strongest)
        )
    return found
