"""Plots of what a run moved, where its time went and which features its trees use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import altair as alt

from hedgerow.coordinator.operator.report.drawing import (
    PALETTE,
    TOP_FEATURES,
    Cell,
    Columns,
    Figure,
    Row,
    amount,
    axis_of_counts,
    bytes_axis,
    feature_bars,
    line_chart,
    number,
    of_bytes,
    of_number,
    of_text,
    tips,
    values,
)
from hedgerow.coordinator.operator.report.effects import MISSING, effects
from hedgerow.coordinator.operator.report.runs import FinishedRun
from hedgerow.coordinator.operator.report.trees import DrawnTrees

TIME_PARTS = {
    "train": "train",
    "wait": "wait for others",
    "encrypt": "keys, masks, encryption",
    "send": "send",
    "ledger": "write the ledger",
}


def bytes_by_step(runs: Sequence[FinishedRun]) -> Figure | None:
    """Return what silos moved for each step, up and down, beside the plan.

    Silos of a horizontal job move the same, so one row is for all; parties of a vertical job
    have rows of their own.
    """
    rows = [row for run in runs for row in (_of_parties(run) if _parted(run) else _of_all(run))]
    if not rows:
        return None
    if len(runs) > 1:
        rows = [{**row, "step": f"{row['run']}: {row['step']}"} for row in rows]
    parted = all(map(_parted, runs))
    title = f"Bytes of {'each party' if parted else 'one silo'}, by step"
    lead = "The upright tick is what the plan said before training. The scale is logarithmic."
    if any(row["mean"] and row["planned"] is None for row in rows):
        lead += " What has none was not planned: bytes of trees depend on their size."
    if not parted:
        lead = "Dots are the mean of the silos, bars from the least to the most. " + lead
    silos = sorted(runs[0].report.bytes.by_silo) if len(runs) == 1 else []
    columns: Columns = [
        ("run", of_text("run")),
        ("step", of_text("call")),
        ("direction", of_text("direction")),
        ("all silos", of_bytes("total")),
        ("one silo, mean", of_bytes("mean")),
        (
            "one silo, planned",
            lambda row: Cell("–") if row["planned"] is None else amount(row["planned"]),
        ),
        ("measured / planned", lambda row: _ratio(row["mean"], row["planned"])),
        *((silo, lambda row, silo=silo: amount(row["by_silo"][silo])) for silo in silos),
    ]
    shown = [{k: v for k, v in row.items() if k != "by_silo"} for row in rows]
    return Figure.of("bytes-by-step", title, lead, _steps(shown), columns, rows)


def _parted(run: FinishedRun) -> bool:
    return run.report.plan is not None and bool(run.report.plan.by_silo)


def _moved(run: FinishedRun, step: str, way: str) -> dict[str, int]:
    """Return what each silo moved for a step."""
    return {
        silo: getattr(traffic.by_step[step], way) if step in traffic.by_step else 0
        for silo, traffic in run.report.bytes.by_silo.items()
    }


def _of_all(run: FinishedRun) -> list[Row]:
    """Return a row for each step and direction: the mean of the silos, and the range."""
    report, plan = run.report, run.report.plan
    rows: list[Row] = []
    for step in dict.fromkeys([*report.bytes.by_step, *(plan.steps if plan else ())]):
        for way in ("up", "down"):
            by_silo = _moved(run, step, way)
            total = getattr(report.bytes.by_step[step], way) if step in report.bytes.by_step else 0
            mean = total / max(len(report.silos), 1)
            known = [v for v in by_silo.values() if v]
            rows.append(
                {
                    "run": run.label, "step": step.removeprefix("Exchange"), "call": step,
                    "direction": way, "total": total, "mean": mean,
                    "least": min(known, default=mean), "most": max(known, default=mean),
                    "planned": getattr(plan.steps[step], way)
                    if plan and step in plan.steps
                    else None,
                    "by_silo": by_silo,
                }
            )  # fmt: skip
    return rows


def _of_parties(run: FinishedRun) -> list[Row]:
    """Return a row for each party, step and direction."""
    report, plan = run.report, run.report.plan
    assert plan is not None
    rows: list[Row] = []
    for step in dict.fromkeys([*report.bytes.by_step, *plan.steps]):
        for way in ("up", "down"):
            by_silo = _moved(run, step, way)
            for silo, moved in by_silo.items():
                planned = plan.by_silo.get(silo, {}).get(step)
                rows.append(
                    {
                        "run": run.label, "step": f"{step.removeprefix('Exchange')}, {silo}",
                        "call": f"{step}, {silo}", "direction": way,
                        "total": sum(by_silo.values()), "mean": moved, "least": moved,
                        "most": moved, "planned": None if planned is None
                        else getattr(planned, way), "by_silo": by_silo,
                    }
                )  # fmt: skip
    order = list(dict.fromkeys(str(row["call"]) for row in rows))
    return sorted(rows, key=lambda row: order.index(row["call"]))


def _steps(rows: list[Row]) -> Any:
    """Return the chart; None where nothing was moved."""
    moved = [row for row in rows if row["mean"] > 0]
    if not moved:
        return None
    planned = [row for row in rows if row["planned"]]
    scale = alt.Scale(type="log", nice=False, padding=12)
    y = alt.Y("step:N", sort=None, title=None, axis=alt.Axis(labelLimit=280, grid=True))
    offset = alt.YOffset("direction:N", sort=["up", "down"])
    color = alt.Color("direction:N", sort=["up", "down"], title=None)
    base = alt.Chart(values(moved)).encode(y=y, yOffset=offset, color=color)
    x_title = "bytes of one silo, whole job"
    layers = [
        base.mark_rule(strokeWidth=4, opacity=0.45).encode(
            x=alt.X("least:Q", scale=scale, title=x_title, axis=bytes_axis(grid=False)),
            x2=alt.X2("most:Q"),
        ),
        base.mark_point(filled=True, size=80, opacity=1).encode(
            x=alt.X("mean:Q", scale=scale, title=x_title),
            tooltip=tips(
                "run:N", "step:N", "direction:N", alt.Tooltip("mean:Q", format=",.0f"),
                alt.Tooltip("least:Q", format=","), alt.Tooltip("most:Q", format=","),
            ),
        ),
    ]  # fmt: skip
    if planned:
        layers.append(
            alt.Chart(values(planned))
            .mark_tick(thickness=3, height=14)
            .encode(
                y=y, yOffset=offset, color=color, x=alt.X("planned:Q", scale=scale, title=x_title),
                tooltip=tips("step:N", "direction:N", alt.Tooltip("planned:Q", format=",")),
            )
        )  # fmt: skip
    height = 44 * len({row["step"] for row in rows})
    return alt.layer(*layers).properties(width="container", height=height)


def _ratio(measured: float, planned: float | None) -> Cell:
    if not planned:
        return Cell("–")
    return number(measured / planned, f"{measured / planned:.2f}")


def bytes_by_silo(runs: Sequence[FinishedRun]) -> Figure | None:
    """Return what each silo moved over the whole job."""
    rows: list[Row] = [
        {"run": run.label, "silo": silo.name, "direction": way, "bytes": moved}
        for run in runs
        for silo in run.report.silos
        for way, moved in (("up", silo.bytes_up), ("down", silo.bytes_down))
    ]
    if not rows:
        return None
    lead = "Data-plane protobuf bytes of the whole job, from the silo (up) and to it (down)."
    chart = _stacked(rows, "bytes", "direction", ["up", "down"], len(runs))
    columns = [(key, of_text(key)) for key in ("run", "silo", "direction")]
    columns.append(("bytes", of_bytes("bytes")))
    return Figure.of("bytes-by-silo", "Bytes by silo", lead, chart, columns, rows)


def _stacked(rows: list[Row], value: str, part: str, parts: list[str], n_runs: int) -> Any:
    """Return bars of silos, stacked by part; of many silos each bar is thinner."""
    who = [{**row, "who": row["silo"] if n_runs == 1 else f"{row['run']}: {row['silo']}",
            "at": parts.index(row[part])} for row in rows]  # fmt: skip
    n_bars = len({row["who"] for row in who})
    x = alt.X(f"{value}:Q", title=value, axis=bytes_axis() if value == "bytes" else alt.Axis())
    return (
        alt.Chart(values(who), width="container", height=n_bars * (22 if n_bars <= 24 else 9))
        .mark_bar()
        .encode(
            x=x,
            y=alt.Y("who:N", sort=None, title=None, axis=alt.Axis(labelLimit=240)),
            color=alt.Color(f"{part}:N", sort=parts, title=None),
            order=alt.Order("at:O"),
            tooltip=tips("who:N", f"{part}:N", alt.Tooltip(f"{value}:Q", format=",.4~g")),
        )
    )


def rounds(runs: Sequence[FinishedRun]) -> tuple[Figure, ...]:
    """Return bytes and seconds of each round."""
    rows: list[Row] = [
        {
            "run": run.label,
            "round": r.round,
            "up": r.bytes_up,
            "down": r.bytes_down,
            "seconds": r.seconds,
        }
        for run in runs
        for r in run.report.rounds
    ]
    if not rows:
        return ()
    many = len(runs) > 1
    moved = [
        {"round": row["round"], "bytes": row[way],
         "series": f"{row['run']}, {way}" if many else way}
        for row in rows for way in ("up", "down")
    ]  # fmt: skip
    took = [{key: row[key] for key in ("run", "round", "seconds")} for row in rows]
    columns: Columns = [
        ("run", of_text("run")),
        ("round", of_number("round", "d")),
        ("bytes up", of_bytes("up")),
        ("bytes down", of_bytes("down")),
        ("seconds", of_number("seconds", ".3f")),
    ]
    x = alt.X("round:Q", title="round", axis=axis_of_counts(max(r["round"] for r in rows)))

    def figure(key: str, title: str, lead: str, data: list[Row], y: Any, color: str) -> Figure:
        order = list(dict.fromkeys(str(row[color]) for row in data))
        shown = tips(f"{color}:N", "round:Q", alt.Tooltip(y.shorthand, format=",.4~g"))
        chart = line_chart(data, x, y, color, order, 22, shown)
        chart = chart.properties(width="container", height=220)
        return Figure.of(key, title, lead, chart, columns, rows)

    return (
        figure(
            "bytes-by-round", "Bytes by round", "All silos together, data plane.", moved,
            alt.Y("bytes:Q", title="bytes", axis=bytes_axis()), "series",
        ),
        figure(
            "seconds-by-round", "Seconds by round", "As the coordinator's clock saw them.", took,
            alt.Y("seconds:Q", title="seconds"), "run",
        ),
    )  # fmt: skip


# --- time ---


def times(runs: Sequence[FinishedRun]) -> Figure | None:
    """Return where each silo's time went, where the run folders tell."""
    rows: list[Row] = [
        {"run": run.label, "silo": silo, "part": shown, "seconds": getattr(spent, part)}
        for run in runs
        for silo, spent in run.times.items()
        for part, shown in TIME_PARTS.items()
    ]
    if not rows:
        return None
    lead = "Seconds from the agreement on the job to the end of each silo's half."
    chart = _stacked(rows, "seconds", "part", list(TIME_PARTS.values()), len(runs))
    spent = [
        {"run": run.label, "silo": silo, **times.model_dump()}
        for run in runs
        for silo, times in run.times.items()
    ]
    columns = [("run", of_text("run")), ("silo", of_text("silo"))]
    for part, shown in {**TIME_PARTS, "seconds": "all"}.items():
        columns.append((shown, of_number(part, ".3f")))
    return Figure.of("times", "Where the silos' time went", lead, chart, columns, spent)


# --- features ---


_STEP: Columns = [
    ("value", of_text("at")), ("class", of_number("group", "d")),
    ("adds to the margin", of_number("value")), ("deviation", of_number("deviation")),
]  # fmt: skip
"""Of a table of curves."""


def curves(forests: Sequence[tuple[FinishedRun, DrawnTrees]]) -> list[Figure]:
    """Return the curves of additive models, of the features that matter most, and their tables."""
    found: list[Figure] = []
    for run, forest in forests:
        names = forest.feature_names
        steps = None if names is None else effects(forest.trees, names, forest.attributes)
        steps = steps or []
        by_feature: dict[str, list[Row]] = {}
        for step in steps:
            by_feature.setdefault(step.feature, []).append(asdict(step))
        reach = {
            name: max(row["value"] for row in rows) - min(row["value"] for row in rows)
            for name, rows in by_feature.items()
        }
        of = f" of {run.label}" if forests[1:] else ""
        for name in sorted(reach, key=lambda name: -reach[name])[:TOP_FEATURES]:
            found.append(_curve(f"curve-{len(found)}", name, of, by_feature[name]))
        if steps:
            lead = (
                "The margin of a row is where margins start and one step of each feature; "
                "a deviation is about that of the budget's noise."
            )
            starts = enumerate(forest.base_margins)
            rows: list[Row] = [
                {"feature": "where margins start", "group": k, "at": "", "value": start,
                 "deviation": None}
                for k, start in starts
            ]  # fmt: skip
            rows += [row for own in by_feature.values() for row in own]
            key, title = f"curves-{len(found)}", f"All curves{of}, to apply by hand"
            columns = [("feature", of_text("feature")), *_STEP]
            found.append(Figure.of(key, title, lead, None, columns, rows))
    return found


def _curve(key: str, feature: str, of: str, rows: list[Row]) -> Figure:
    """Return the curve of one feature, with two deviations of noise about it."""
    for row in rows:
        noise = 2 * (row["deviation"] or 0.0)
        row |= {"low": row["value"] - noise, "high": row["value"] + noise}
        row["series"] = f"class {row['group']}"
    many = len({row["group"] for row in rows}) > 1
    color: Any = alt.Color("series:N", title=None) if many else alt.value(PALETTE[0])
    shown = tips("at:N", alt.Tooltip("value:Q", format=".4g"))
    y, low, high = alt.Y("value:Q", title="margin"), alt.Y("low:Q"), alt.Y2("high:Q")
    ends = [row[end] for row in rows for end in ("least", "below") if row[end] is not None]
    if ends:
        span = max(ends) - min(ends) or 1.0
        least, most = min(ends) - span / 20, max(ends) + span / 20
        places = [
            {**row, "x": x}
            for row in rows
            if row["at"] != MISSING
            for x in (least if row["least"] is None else row["least"],
                      most if row["below"] is None else row["below"])
        ]  # fmt: skip
        base = alt.Chart(values(places)).encode(
            x=alt.X("x:Q", title=feature, scale=alt.Scale(zero=False, nice=False)), color=color
        )
        band = base.mark_area(opacity=0.25).encode(y=low, y2=high)
        chart = alt.layer(band, base.mark_line(strokeWidth=2).encode(y=y, tooltip=shown))
    else:
        base = alt.Chart(values(rows)).encode(
            x=alt.X("at:N", title=feature, sort=None, axis=alt.Axis(labelLimit=120)), color=color
        )
        band = base.mark_rule(strokeWidth=5, opacity=0.35).encode(y=low, y2=high)
        points = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, tooltip=shown)
        chart = alt.layer(band, points)
    lead = f"What {feature} adds to the margin of a row."
    if rows[0]["deviation"] is not None:
        lead += " The band is about two deviations of the budget's noise."
    chart = chart.properties(width="container", height=200)
    return Figure.of(key, f"{feature}{of}", lead, chart, _STEP, rows)


def importance(forests: Sequence[tuple[FinishedRun, DrawnTrees]]) -> Figure | None:
    """Return what each feature gives to the trees."""
    rows: list[Row] = [
        {
            "run": run.label,
            "feature": found.feature,
            "gain": found.gain if found.gain == found.gain else None,
            "splits": found.splits,
        }
        for run, forest in forests
        for found in forest.importance
    ]
    if not rows:
        return None
    if any(row["gain"] is not None for row in rows):
        value, axis = "gain", alt.Axis(format=".0%", tickCount=6)
        lead = "Share of the total gain of all splits that use the feature."
    else:
        value, axis = "splits", axis_of_counts(max(row["splits"] for row in rows))
        lead = (
            "Splits that use the feature: the trees have no gains. Bagging has them where three "
            "silos or more can sum them."
        )
    x = alt.X(f"{value}:Q", title="share of gain" if value == "gain" else "splits", axis=axis)
    shown = tips("run:N", "feature:N", alt.Tooltip("gain:Q", format=".2%"), "splits:Q")
    chart, more = feature_bars(rows, x, value, "run", [run.label for run, _ in forests], shown)
    columns: Columns = [
        ("run", of_text("run")),
        ("feature", of_text("feature")),
        ("share of gain", of_number("gain", ".2%")),
        ("splits", of_number("splits", "d")),
    ]
    return Figure.of("importance", "What the features give", lead + more, chart, columns, rows)
