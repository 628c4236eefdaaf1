"""How many rows of all silos have had no event by a time: Kaplan-Meier curves of the report."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from hedgerow.coordinator.operator.report.drawing import (
    Columns,
    Figure,
    Row,
    legend_of,
    of_number,
    of_text,
    tips,
    values,
)
from hedgerow.coordinator.operator.report.runs import FinishedRun

_COLUMNS: Columns = [
    ("run", of_text("run")), ("from", of_number("from", ".4g")), ("until", of_text("until")),
    ("events", of_number("events", ",d")), ("rows", of_number("rows", ",d")),
    ("survival", of_number("survival", ".3f")), ("low", of_number("low", ".3f")),
    ("high", of_number("high", ".3f")),
]  # fmt: skip


def kaplan_meier(runs: Sequence[FinishedRun]) -> Figure | None:
    """Return the curves of the runs that have one, with their 95 % intervals."""
    rows: list[Row] = []
    shown: list[Row] = []
    for run in runs:
        cells = run.survival.cells if run.survival is not None else ()
        for k, cell in enumerate(cells):
            told = cell.model_dump() | {"run": run.label, "from": cell.start}
            until = cell.until if cell.until is not None else cell.start
            rows.append(told | {"until": "later" if cell.until is None else f"{until:.4g}"})
            if k == 0:
                shown.append({"run": run.label, "time": 0.0, "survival": 1.0, "low": 1.0,
                              "high": 1.0})  # fmt: skip
            shown.append(told | {"time": until})
    if not rows:
        return None
    names = list(dict.fromkeys(str(row["run"]) for row in rows))
    x = alt.X("time:Q", title="time, as the label has it")
    color = alt.Color("run:N", sort=names, title=None, legend=legend_of(names))
    base = alt.Chart(values(shown))
    band = base.mark_area(opacity=0.2, interpolate="step-after").encode(
        x=x, y=alt.Y("low:Q", title="share without an event"), y2="high:Q", color=color
    )
    line = base.mark_line(interpolate="step-after").encode(
        x=x, y="survival:Q", color=color, tooltip=tips("run:N", "time:Q", "survival:Q")
    )
    chart = alt.layer(band, line).properties(width="container", height=320)
    lead = (
        "Kaplan-Meier, by cells of times with min_cell events of all silos or more: a step is at "
        "the end of its cell, the last at its begin. The band is Greenwood's 95 % interval."
    )
    return Figure.of("kaplan-meier", "Time to the event", lead, chart, _COLUMNS, rows)
