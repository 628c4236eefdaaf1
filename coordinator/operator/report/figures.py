"""Plots of a report, each with the table behind it, as Vega-Lite specifications by Altair.

Marks have colours that stand out on white and on black; text, axes and grid get theirs from the
page's style sheet, so one drawing serves both colour schemes and the printer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import InvalidJob
from hedgerow.coordinator.operator.progress import size
from hedgerow.coordinator.operator.report.runs import Curve, Run
from hedgerow.coordinator.operator.report.trees import Forest

PALETTE = (
    "#3b82c4", "#d9731a", "#2a9a68", "#a05fc6", "#d14f63",
    "#1f97a8", "#a07a3c", "#7b8794", "#7c7ff0", "#b6487f",
)  # fmt: skip
"""Colours with a contrast of three or more to white and to the dark page."""
TIME_PARTS = {
    "train": "train",
    "wait": "wait for others",
    "encrypt": "keys, masks, encryption",
    "send": "send",
    "ledger": "write the ledger",
}
TOP_FEATURES = 15

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell: what is shown, and the exact value behind it (empty for text)."""

    text: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot and its table.

    Parameters
    ----------
    lead : str
        One sentence on what is seen; also the plot's description for screen readers.
    spec : dict or None
        Vega-Lite; None where only the table makes sense.
    """

    key: str
    title: str
    lead: str
    spec: dict[str, Any] | None
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def text(value: object) -> Cell:
    """Return a cell of words."""
    return Cell(str(value))


def number(value: float | None, shown: str | None = None) -> Cell:
    """Return a cell of a number, exact behind what is shown."""
    if value is None:
        return Cell("not defined")
    return Cell(shown if shown is not None else f"{value:.5g}", repr(value))


def amount(n_bytes: float) -> Cell:
    """Return a cell of bytes."""
    return number(n_bytes, size(n_bytes))


def drawn(chart: Any, title: str, lead: str) -> dict[str, Any]:
    """Return a chart as a specification in the page's style, with a description."""
    described = chart.properties(
        description=f"{title}. {lead}",
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
    )
    found: dict[str, Any] = described.configure(
        background="transparent",
        font="system-ui, sans-serif",
        axis=alt.AxisConfig(labelFontSize=12, titleFontSize=12, titleFontWeight="normal"),
        legend=alt.LegendConfig(
            labelFontSize=12,
            titleFontSize=12,
            orient="top",
            symbolSize=90,
            labelLimit=260,
            symbolOpacity=1.0,
            columns=3,
        ),
        view=alt.ViewConfig(stroke=None),
        range=alt.RangeConfig(category=list(PALETTE)),
    ).to_dict()
    return found


def axis_of_counts(most: int, **more: Any) -> alt.Axis:
    """Return an axis of whole numbers up to ``most``, none of which comes twice."""
    if most <= 12:
        return alt.Axis(values=list(range(most + 1)), format="d", **more)
    return alt.Axis(tickMinStep=1, format="d", **more)


def _values(rows: Iterable[Row]) -> alt.InlineData:
    return alt.InlineData(values=list(rows))


# --- quality ---


def quality(runs: Sequence[Run]) -> tuple[Figure, ...]:
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
    return Figure(
        "scores",
        "Scores of single rounds",
        "What was scored once: of one round, or at the end.",
        None,
        ("metric", "series", "round", "value", "read"),
        tuple(
            (
                text(name), text(row["who"]), number(row["round"], str(row["round"])),
                number(row["value"]), text(_direction(name)),
            )
            for name, found in rows.items()
            for row in found
        ),
    )  # fmt: skip


def _direction(name: str) -> str:
    if name == "share_gaining":
        return "share of the silos whose federated tree beats their own"
    if name.startswith("own_"):
        return f"{_direction(name.removeprefix('own_'))}; of the trees that silos grew alone"
    try:
        return "higher is better" if metrics.higher_is_better(name) else "lower is better"
    except InvalidJob:
        return "a score of the strategy's own"


def _scored(runs: Sequence[Run], name: str) -> list[Row]:
    """Return the points of a metric: of the runs' models, then of their baselines."""
    many = len(runs) > 1
    rows: list[Row] = []
    for run in runs:
        for r in run.report.rounds:
            for data, scores in r.metrics.items():
                if name in scores:
                    series = f"{run.label}, {data}" if many else data
                    rows.append(_point(series, "federated", r.round, scores[name]))
    baselines = _baselines_of(runs)
    n_alone = sum(curve.kind == "local" for _, curve in baselines)
    for label, curve in baselines:
        shown = "each silo alone" if curve.kind == "local" and n_alone > 1 else curve.who
        for k, found in enumerate(curve.rounds):
            if name in found:
                point = _point(f"{label}{shown}", curve.kind, k, found[name])
                rows.append({**point, "who": f"{label}{curve.who}"})
    return rows


def _quality(name: str, rows: Sequence[Row]) -> Figure:
    title = f"{name} over the rounds"
    lead = f"{name} ({_direction(name)}) of the model after each round"
    lead += "; dashed and dotted lines are baselines." if _kinds(rows) else "."
    return _curves(f"quality-{name}", title, lead, name, rows)


def _kinds(rows: Sequence[Row]) -> bool:
    return len({row["kind"] for row in rows}) > 1


def _baselines_of(runs: Sequence[Run]) -> list[tuple[str, Curve]]:
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


def quality_by_silo(runs: Sequence[Run]) -> tuple[Figure, ...]:
    """Return a plot for each metric of the common model on each silo's own rows."""
    names = dict.fromkeys(name for run in runs for name in run.report.metrics)
    found = []
    for name in names:
        many = len(runs) > 1
        rows = [
            {
                **_point(run.label if many else c.data, c.kind, k, scores[name]),
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
    """Return lines over rounds, one a series; baselines are told by their dashes."""
    order = list(dict.fromkeys(str(row["series"]) for row in rows))
    known = [row for row in rows if row["value"] is not None]
    most = max((len({r["round"] for r in known if r["series"] == s}) for s in order), default=0)
    last = max((row["round"] for row in known), default=1)
    encodings: dict[str, Any] = {
        "x": alt.X("round:Q", title="round", axis=axis_of_counts(last)),
        "y": alt.Y("value:Q", title=name, scale=alt.Scale(zero=False)),
        "color": alt.Color("series:N", sort=order, title=None, legend=alt.Legend()),
        "detail": "who:N",
        "tooltip": ["who:N", "round:Q", alt.Tooltip("value:Q", format=".6g", title=name)],
    }
    if _kinds(rows):
        dashes = alt.Scale(
            domain=["federated", "pooled", "mean", "local"],
            range=[[1, 0], [7, 3], [4, 3], [1.5, 2.5]],
        )
        encodings["strokeDash"] = alt.StrokeDash("kind:N", scale=dashes, legend=None)
    chart = (
        alt.Chart(_values(known), width="container", height=280)
        .mark_line(point={"size": 22 if most > 12 else 45}, strokeWidth=2)
        .encode(**encodings)
    )
    return Figure(
        key,
        title,
        lead,
        drawn(chart, title, lead) if known else None,
        ("series", "round", name),
        tuple(
            (text(row["who"]), number(row["round"], str(row["round"])), number(row["value"]))
            for row in rows
        ),
    )


def _point(series: str, kind: str, round: int, value: float | None) -> Row:
    return {"series": series, "who": series, "kind": kind, "round": round + 1, "value": value}


def cost_of_quality(runs: Sequence[Run]) -> Figure | None:
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
    chart = (
        alt.Chart(_values(rows), width="container", height=280)
        .mark_line(point={"size": 30}, strokeWidth=2)
        .encode(
            x=alt.X(
                "bytes:Q", scale=alt.Scale(type="log"), title="bytes moved", axis=_bytes_axis()
            ),
            y=alt.Y("value:Q", title=name, scale=alt.Scale(zero=False)),
            color=alt.Color("run:N", sort=[run.label for run in scored], title=None),
            order="bytes:Q",
            tooltip=["run:N", alt.Tooltip("bytes:Q", format=".3~s"), "value:Q"],
        )
    )
    return Figure(
        "cost-of-quality",
        title,
        lead,
        drawn(chart, title, lead),
        ("run", "data", "bytes moved", name),
        tuple(
            (text(r["run"]), text(r["data"]), amount(r["bytes"]), number(r["value"])) for r in rows
        ),
    )


def _bytes_axis(**more: Any) -> alt.Axis:
    return alt.Axis(format="~s", tickCount=5, **more)


# --- bytes ---


def bytes_by_step(runs: Sequence[Run]) -> Figure | None:
    """Return what silos moved for each step, up and down, beside the plan.

    Silos of a horizontal job move the same, so one row stands for all; parties of a vertical job
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
    if not parted:
        lead = "Dots are the mean of the silos, bars from the least to the most. " + lead
    silos = sorted(runs[0].report.bytes.by_silo) if len(runs) == 1 else []
    headings = (
        "run", "step", "direction", "all silos", "one silo, mean", "one silo, planned",
        "measured / planned", *silos,
    )  # fmt: skip
    table = tuple(
        (
            text(row["run"]), text(row["call"]), text(row["direction"]), amount(row["total"]),
            amount(row["mean"]),
            number(row["planned"], "" if row["planned"] is None else size(row["planned"])),
            _ratio(row["mean"], row["planned"]), *(amount(row["by_silo"][s]) for s in silos),
        )
        for row in rows
    )  # fmt: skip
    shown = [{k: v for k, v in row.items() if k != "by_silo"} for row in rows]
    return Figure("bytes-by-step", title, lead, _steps(shown, title, lead), headings, table)


def _parted(run: Run) -> bool:
    return run.report.plan is not None and bool(run.report.plan.by_silo)


def _moved(run: Run, step: str, way: str) -> dict[str, int]:
    """Return what each silo moved for a step."""
    return {
        silo: getattr(traffic.by_step[step], way) if step in traffic.by_step else 0
        for silo, traffic in run.report.bytes.by_silo.items()
    }


def _of_all(run: Run) -> list[Row]:
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


def _of_parties(run: Run) -> list[Row]:
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


def _steps(rows: list[Row], title: str, lead: str) -> dict[str, Any] | None:
    moved = [row for row in rows if row["mean"] > 0]
    if not moved:
        return None
    planned = [row for row in rows if row["planned"]]
    scale = alt.Scale(type="log", nice=False, padding=12)
    y = alt.Y("step:N", sort=None, title=None, axis=alt.Axis(labelLimit=280, grid=True))
    offset = alt.YOffset("direction:N", sort=["up", "down"])
    color = alt.Color("direction:N", sort=["up", "down"], title=None)
    base = alt.Chart(_values(moved)).encode(y=y, yOffset=offset, color=color)
    x_title = "bytes of one silo, whole job"
    layers = [
        base.mark_rule(strokeWidth=4, opacity=0.45).encode(
            x=alt.X("least:Q", scale=scale, title=x_title, axis=_bytes_axis(grid=False)),
            x2="most:Q",
        ),
        base.mark_point(filled=True, size=80, opacity=1).encode(
            x=alt.X("mean:Q", scale=scale, title=x_title),
            tooltip=[
                "run:N", "step:N", "direction:N", alt.Tooltip("mean:Q", format=",.0f"),
                alt.Tooltip("least:Q", format=","), alt.Tooltip("most:Q", format=","),
            ],
        ),
    ]  # fmt: skip
    if planned:
        layers.append(
            alt.Chart(_values(planned))
            .mark_tick(thickness=3, height=14)
            .encode(
                y=y, yOffset=offset, color=color, x=alt.X("planned:Q", scale=scale, title=x_title),
                tooltip=["step:N", "direction:N", alt.Tooltip("planned:Q", format=",")],
            )
        )  # fmt: skip
    chart = alt.layer(*layers).properties(
        width="container", height=44 * len({row["step"] for row in rows})
    )
    return drawn(chart, title, lead)


def _ratio(measured: float, planned: float | None) -> Cell:
    if not planned:
        return Cell("–")
    return number(measured / planned, f"{measured / planned:.2f}")


def bytes_by_silo(runs: Sequence[Run]) -> Figure | None:
    """Return what each silo moved over the whole job."""
    rows: list[Row] = [
        {"run": run.label, "silo": silo.name, "direction": way, "bytes": moved}
        for run in runs
        for silo in run.report.silos
        for way, moved in (("up", silo.bytes_up), ("down", silo.bytes_down))
    ]
    if not rows:
        return None
    title = "Bytes by silo"
    lead = "Data-plane protobuf bytes of the whole job, from the silo (up) and to it (down)."
    return Figure(
        "bytes-by-silo",
        title,
        lead,
        _stacked(rows, "bytes", "direction", ["up", "down"], "bytes", title, lead, len(runs)),
        ("run", "silo", "direction", "bytes"),
        tuple(
            (text(r["run"]), text(r["silo"]), text(r["direction"]), amount(r["bytes"]))
            for r in rows
        ),
    )


def _stacked(
    rows: list[Row], value: str, part: str, parts: list[str], unit: str, title: str, lead: str,
    n_runs: int,
) -> dict[str, Any]:  # fmt: skip
    """Return bars of silos, stacked by part; of many silos each bar is thinner."""
    who = [{**row, "who": row["silo"] if n_runs == 1 else f"{row['run']}: {row['silo']}",
            "at": parts.index(row[part])} for row in rows]  # fmt: skip
    n_bars = len({row["who"] for row in who})
    x = alt.X(f"{value}:Q", title=unit, axis=_bytes_axis() if unit == "bytes" else alt.Axis())
    chart = (
        alt.Chart(_values(who), width="container", height=n_bars * (22 if n_bars <= 24 else 9))
        .mark_bar()
        .encode(
            x=x,
            y=alt.Y("who:N", sort=None, title=None, axis=alt.Axis(labelLimit=240)),
            color=alt.Color(f"{part}:N", sort=parts, title=None),
            order="at:O",
            tooltip=["who:N", f"{part}:N", alt.Tooltip(f"{value}:Q", format=",.4~g")],
        )
    )
    return drawn(chart, title, lead)


def rounds(runs: Sequence[Run]) -> tuple[Figure, ...]:
    """Return bytes and seconds of each round."""
    rows: list[Row] = [
        {
            "run": run.label,
            "round": r.round + 1,
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
        {**row, "direction": way, "bytes": row[way],
         "series": f"{row['run']}, {way}" if many else way}
        for row in rows for way in ("up", "down")
    ]  # fmt: skip
    table = tuple(
        (
            text(row["run"]), number(row["round"], str(row["round"])), amount(row["up"]),
            amount(row["down"]), number(row["seconds"], f"{row['seconds']:.3f}"),
        )
        for row in rows
    )  # fmt: skip
    headings = ("run", "round", "bytes up", "bytes down", "seconds")
    x = alt.X("round:Q", title="round", axis=axis_of_counts(max(r["round"] for r in rows)))

    def figure(key: str, title: str, lead: str, data: list[Row], y: Any, color: str) -> Figure:
        order = list(dict.fromkeys(str(row[color]) for row in data))
        chart = (
            alt.Chart(_values(data), width="container", height=220)
            .mark_line(point={"size": 22}, strokeWidth=2)
            .encode(
                x=x,
                y=y,
                color=alt.Color(f"{color}:N", sort=order, title=None,
                                legend=alt.Legend() if len(order) > 1 else None),
                tooltip=[f"{color}:N", "round:Q", alt.Tooltip(y.shorthand, format=",.4~g")],
            )
        )  # fmt: skip
        return Figure(key, title, lead, drawn(chart, title, lead), headings, table)

    return (
        figure(
            "bytes-by-round", "Bytes by round", "All silos together, data plane.", moved,
            alt.Y("bytes:Q", title="bytes", axis=_bytes_axis()), "series",
        ),
        figure(
            "seconds-by-round", "Seconds by round", "As the coordinator's clock saw them.", rows,
            alt.Y("seconds:Q", title="seconds"), "run",
        ),
    )  # fmt: skip


# --- time ---


def times(runs: Sequence[Run]) -> Figure | None:
    """Return where each silo's time went, where the run folders tell."""
    rows: list[Row] = [
        {"run": run.label, "silo": silo, "part": shown, "seconds": getattr(spent, part)}
        for run in runs
        for silo, spent in run.times.items()
        for part, shown in TIME_PARTS.items()
    ]
    if not rows:
        return None
    title = "Where the silos' time went"
    lead = "Seconds from the agreement on the job to the end of each silo's half."
    return Figure(
        "times",
        title,
        lead,
        _stacked(
            rows, "seconds", "part", list(TIME_PARTS.values()), "seconds", title, lead, len(runs)
        ),
        ("run", "silo", *TIME_PARTS.values(), "all"),
        tuple(
            (
                text(run.label),
                text(silo),
                *(number(getattr(t, p), f"{getattr(t, p):.3f}") for p in TIME_PARTS),
                number(t.seconds, f"{t.seconds:.3f}"),
            )
            for run in runs
            for silo, t in run.times.items()
        ),
    )


# --- features ---


def importance(forests: Sequence[tuple[Run, Forest]]) -> Figure | None:
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
    with_gain = any(row["gain"] is not None for row in rows)
    value = "gain" if with_gain else "splits"
    title = "What the features give"
    lead = (
        "Share of the total gain of all splits that use the feature."
        if with_gain
        else "Splits that use the feature; gains were taken out of the trees before they travelled."
    )
    top: dict[str, float] = {}
    for row in rows:
        top[row["feature"]] = max(top.get(row["feature"], 0.0), float(row[value] or 0.0))
    shown = sorted(top, key=lambda name: -top[name])[:TOP_FEATURES]
    if len(top) > len(shown):
        lead += f" The first {len(shown)} of {len(top)}; the table has all."
    many = len(forests) > 1
    encodings: dict[str, Any] = {
        "x": alt.X(
            f"{value}:Q", title="share of gain" if with_gain else "splits",
            axis=alt.Axis(format=".0%", tickCount=6)
            if with_gain
            else axis_of_counts(max(row["splits"] for row in rows)),
        ),
        "y": alt.Y("feature:N", sort=shown, title=None, axis=alt.Axis(labelLimit=200)),
        "tooltip": ["run:N", "feature:N", alt.Tooltip("gain:Q", format=".2%"), "splits:Q"],
    }  # fmt: skip
    if many:
        order = [run.label for run, _ in forests]
        encodings["yOffset"] = alt.YOffset("run:N", sort=order)
        encodings["color"] = alt.Color("run:N", sort=order, title=None)
    top_rows = [row for row in rows if row["feature"] in set(shown) and row[value] is not None]
    chart = (
        alt.Chart(
            _values(top_rows),
            width="container",
            height=len(shown) * (4 + 12 * len(forests) if many else 20),
        )
        .mark_bar(color=PALETTE[0])
        .encode(**encodings)
    )
    return Figure(
        "importance",
        title,
        lead,
        drawn(chart, title, lead),
        ("run", "feature", "share of gain", "splits"),
        tuple(
            (
                text(row["run"]),
                text(row["feature"]),
                number(row["gain"], "" if row["gain"] is None else f"{row['gain']:.2%}"),
                number(row["splits"], str(row["splits"])),
            )
            for row in rows
        ),
    )
