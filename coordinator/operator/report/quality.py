"""Plots of quality: scores by round, by silo and by what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import altair as alt

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import InvalidJob
from hedgerow.coordinator.operator.report.drawing import (
    PLAIN,
    Columns,
    Figure,
    Row,
    axis_of_counts,
    bytes_axis,
    legend_of,
    of_bytes,
    of_number,
    of_text,
    text,
    tips,
    values,
)
from hedgerow.coordinator.operator.report.runs import Curve, FinishedRun

_NEAR_CHANCE = 0.65
"""AUC below which a plot has the line of chance: further up it would flatten the curves."""


def quality(runs: Sequence[FinishedRun]) -> tuple[Figure, ...]:
    """Return a plot for each metric: its value over the rounds, and beside it the baselines."""
    names = dict.fromkeys(name for run in runs for name in run.report.metrics)
    rows = {name: _scored(runs, name) for name in names}
    followed = {name: found for name, found in rows.items() if _is_curve(found)}
    once = {name: found for name, found in rows.items() if name not in followed}
    return (
        *(_quality(name, found) for name, found in followed.items()),
        *([_scores(once)] if once else []),
    )


def _is_curve(rows: Sequence[Row]) -> bool:
    """Whether a series of them has several points to draw a line through."""
    return any(n > 1 for n in Counter(r["who"] for r in rows if r["value"] is not None).values())


def _scores(rows: dict[str, list[Row]]) -> Figure:
    """Return the table of scores that are there for one round only."""
    lead = "What was scored once: of one round, or at the end."
    columns: Columns = [
        ("metric", of_text("metric")),
        ("series", of_text("who")),
        ("round", of_number("round", "d")),
        ("value", of_number("value")),
        ("read", lambda row: text(_direction(row["metric"]))),
    ]
    scored = [{"metric": name, **row} for name, found in rows.items() for row in found]
    return Figure.of("scores", "Scores of single rounds", lead, None, columns, scored)


def _direction(name: str) -> str:
    if name == "share_gaining":
        return "share of the silos whose federated tree beats their own"
    if name == "delta":
        return "change from the silos' own trees to their federated ones, in percent"
    if name.startswith("own_"):
        return f"{_direction(name.removeprefix('own_'))}; of the trees that silos grew alone"
    try:
        return "higher is better" if metrics.higher_is_better(name) else "lower is better"
    except InvalidJob:
        return "a score of the strategy's own"


def _scored(runs: Sequence[FinishedRun], name: str) -> list[Row]:
    """Return the points of a metric: of the runs' models, then of their baselines."""
    many = len(runs) > 1
    rows: list[Row] = []
    for run in runs:
        for r in run.report.rounds:
            for data, scores in r.metrics.items():
                if name in scores:
                    series = f"{run.label}, {data}" if many else data
                    rows.append(_point(series, "federated", r.round, scores[name]))
    baselines = baselines_of(runs)
    n_alone = sum(curve.kind == "local" for _, curve in baselines)
    for label, curve in baselines:
        shown = "each silo alone" if curve.kind == "local" and n_alone > 1 else curve.who
        for k, found in enumerate(curve.rounds):
            if name in found:
                point = _point(f"{label}{shown}", curve.kind, k + 1, found[name])
                rows.append({**point, "who": f"{label}{curve.who}"})
    return rows


def _quality(name: str, rows: Sequence[Row]) -> Figure:
    title = f"{name} over the rounds"
    lead = f"{name} ({_direction(name)}) of the model after each round"
    lead += "; dashed and dotted lines are baselines." if _kinds(rows) else "."
    return _curves(f"quality-{name}", title, lead, name, rows)


def _kinds(rows: Sequence[Row]) -> bool:
    return len({row["kind"] for row in rows}) > 1


def baselines_of(runs: Sequence[FinishedRun]) -> list[tuple[str, Curve]]:
    """Return baselines with what to put before their names; those that all runs share come once."""
    own = {
        run.label: [c for c in run.baselines.curves if c.kind != "federated"]
        for run in runs
        if run.baselines is not None
    }
    first, *others = [*own.values()] or [[]]
    if len(own) == len(runs) and all(other == first for other in others):
        return [("", curve) for curve in first]
    return [(f"{label}: ", curve) for label, curves in own.items() for curve in curves]


def quality_by_silo(runs: Sequence[FinishedRun]) -> tuple[Figure, ...]:
    """Return a plot for each metric of the common model on each silo's own rows."""
    names = dict.fromkeys(name for run in runs for name in run.report.metrics)
    found = []
    for name in names:
        many = len(runs) > 1
        rows = [
            {
                **_point(run.label if many else c.data, c.kind, k + 1, scores[name]),
                "who": f"{run.label}, {c.data}" if many else c.data,
            }
            for run in runs
            for c in (run.baselines.curves if run.baselines else ())
            if c.kind == "federated"
            for k, scores in enumerate(c.rounds)
            if name in scores
        ]
        if rows:
            title = f"{name} at each silo"
            lead = f"{name} ({_direction(name)}) of the common model on the silos' own rows"
            lead += "; a line for each silo." if many else "."
            found.append(_curves(f"silo-quality-{name}", title, lead, name, rows))
    return tuple(found)


def _curves(key: str, title: str, lead: str, name: str, rows: Sequence[Row]) -> Figure:
    """Return lines over rounds, one a series; baselines have dashes."""
    order = list(dict.fromkeys(str(row["series"]) for row in rows))
    known = [row for row in rows if row["value"] is not None]
    most = max((len({r["round"] for r in known if r["series"] == s}) for s in order), default=0)
    last = max((row["round"] for row in known), default=1)
    encodings: dict[str, Any] = {
        "x": alt.X("round:Q", title="round", axis=axis_of_counts(last)),
        "y": alt.Y("value:Q", title=name, scale=alt.Scale(zero=False)),
        "color": alt.Color(
            "series:N", sort=order, title=None, legend=legend_of(order) or alt.Legend()
        ),
        "detail": alt.Detail("who:N"),
        "tooltip": tips("who:N", "round:Q", alt.Tooltip("value:Q", format=".6g", title=name)),
    }
    if _kinds(rows):
        dashes = alt.Scale(
            domain=["federated", "pooled", "mean", "local"],
            range=[[1, 0], [7, 3], [4, 3], [1.5, 2.5]],
        )
        encodings["strokeDash"] = alt.StrokeDash("kind:N", scale=dashes, legend=None)
    chart: Any = (
        alt.Chart(values(known))
        .mark_line(point={"size": 22 if most > 12 else 45}, strokeWidth=2)
        .encode(**encodings)
    )
    chart, said = _with_chance(chart, name, known)
    lead += said
    chart = chart.properties(width="container", height=280) if known else None
    columns: Columns = [
        ("series", of_text("who")),
        ("round", of_number("round", "d")),
        (name, of_number("value")),
    ]
    return Figure.of(key, title, lead, chart, columns, rows)


def _with_chance(chart: Any, name: str, rows: Sequence[Row]) -> tuple[Any, str]:
    """Return a plot of an AUC with the line of chance, and a sentence that says where that is."""
    if name.removeprefix("own_") != "auc":
        return chart, ""
    if all(row["value"] >= _NEAR_CHANCE for row in rows):
        return chart, " Chance is 0.5, below the plot."
    chance = alt.Chart(values([{"value": 0.5}])).mark_rule(
        strokeDash=[6, 4], color=PLAIN, strokeWidth=1.5
    )
    layers = alt.layer(chance.encode(y=alt.Y("value:Q", title=name)), chart)
    return layers, " Chance is 0.5, the grey line."


def _point(series: str, kind: str, round: int, value: float | None) -> Row:
    return {"series": series, "who": series, "kind": kind, "round": round, "value": value}


def cost_of_quality(runs: Sequence[FinishedRun]) -> Figure | None:
    """Return the first common metric over the bytes that were moved to reach it."""
    scored = [run for run in runs if run.report.metrics]
    if len(scored) < 2:
        return None
    common = [m for m in scored[0].report.metrics if all(m in r.report.metrics for r in scored)]
    if not common:
        return None
    name = common[0]
    rows: list[Row] = []
    for run in scored:
        moved, data = 0, run.report.data_sets[0]
        for r in run.report.rounds:
            moved += r.bytes_up + r.bytes_down
            value = r.metrics.get(data, {}).get(name)
            if value is not None and moved:
                rows.append({"run": run.label, "bytes": moved, "value": value, "data": data})
    title = f"{name} for the bytes it takes"
    lead = f"{name} ({_direction(name)}) against all bytes moved until then, up and down."
    chart: Any = (
        alt.Chart(values(rows))
        .mark_line(point={"size": 30}, strokeWidth=2)
        .encode(
            x=alt.X("bytes:Q", scale=alt.Scale(type="log"), title="bytes moved", axis=bytes_axis()),
            y=alt.Y("value:Q", title=name, scale=alt.Scale(zero=False)),
            color=alt.Color("run:N", sort=[run.label for run in scored], title=None),
            order=alt.Order("bytes:Q"),
            tooltip=tips("run:N", alt.Tooltip("bytes:Q", format=".3~s"), "value:Q"),
        )
    )
    chart, said = _with_chance(chart, name, rows)
    chart = chart.properties(width="container", height=280)
    columns: Columns = [
        ("run", of_text("run")),
        ("data", of_text("data")),
        ("bytes moved", of_bytes("bytes")),
        (name, of_number("value")),
    ]
    return Figure.of("cost-of-quality", title, lead + said, chart, columns, rows)
