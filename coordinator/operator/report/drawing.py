"""What the plots of a report are made of: Vega-Lite specifications by Altair, tables, cells.

Marks have colours that stand out on white and on black; text, axes and grid get theirs from the
page's style sheet, so one drawing serves both colour schemes and the printer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import altair as alt
from altair.utils import schemapi
from markupsafe import Markup

from hedgerow.coordinator.operator.progress import size
from hedgerow.services.process.texts import told_apart

PALETTE = (
    "#3b82c4", "#d9731a", "#2a9a68", "#a05fc6", "#d14f63",
    "#1f97a8", "#a07a3c", "#7b8794", "#7c7ff0", "#b6487f",
)  # fmt: skip
"""Colours with a contrast of three or more to white and to the dark page."""
PLAIN = "#7b8794"
"""Colour of a line to compare with; readable on white and on black."""
TOP_FEATURES = 15
LEGEND_LETTERS = 38
AXIS_LETTERS = 15
"""Of a name in a legend, and beside a matrix, of which a phone shows all."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell: what is shown, and the exact value behind it (empty for text)."""

    text: str
    value: str = ""

    def __html__(self) -> str:
        """Return the element that templates show."""
        exact = f' class="number" data-value="{escape(self.value)}"' if self.value else ""
        return f"<td{exact}>{escape(self.text)}</td>"


def table_rows(rows: Iterable[Iterable[Cell]]) -> Markup:
    """Return a table's rows; large runs have ten thousand cells."""
    html = "\n".join([f"<tr>{''.join([cell.__html__() for cell in row])}</tr>" for row in rows])
    return Markup(html)  # noqa: S704


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot and its table."""

    key: str
    title: str
    lead: str
    """One sentence on what is seen; also the plot's description for screen readers."""
    spec: dict[str, Any] | None
    """Vega-Lite; None where only the table makes sense."""
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    thresholds: dict[str, Any] | None = None
    """Confusion matrices that the page's script shows for a threshold."""

    @classmethod
    def of(
        cls, key: str, title: str, lead: str, chart: Any, columns: Columns, rows: Iterable[Any]
    ) -> Figure:
        """Return a figure of a chart, or of none, and the cells that ``columns`` make of rows."""
        spec = None if chart is None else drawn(chart, title, lead)
        cells = tuple(tuple(cell(row) for _, cell in columns) for row in rows)
        return cls(key, title, lead, spec, tuple(heading for heading, _ in columns), cells)


Columns = Sequence[tuple[str, Callable[[Any], Cell]]]
"""Of a table: headings, and what makes a cell of a row."""


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


def of_text(key: str) -> Callable[[Row], Cell]:
    """Return what makes a cell of a row's words."""
    return lambda row: text(row[key])


def of_bytes(key: str) -> Callable[[Row], Cell]:
    """Return what makes a cell of a row's bytes."""
    return lambda row: number(row[key], None if row[key] is None else size(row[key]))


def of_number(key: str, form: str = ".5g") -> Callable[[Row], Cell]:
    """Return what makes a cell of a row's number, shown in this format."""
    return lambda row: number(row[key], None if row[key] is None else format(row[key], form))


def drawn(chart: Any, title: str, lead: str) -> dict[str, Any]:
    """Return a chart as a specification in the page's style, with a description."""
    found: dict[str, Any] = chart.to_dict(validate=schemapi.DEBUG_MODE)
    config = dict(found["config"])
    for name, value in _style().items():
        config[name] = {**config.get(name, {}), **value} if isinstance(value, dict) else value
    # Written here, because each method of a chart copies all of it.
    return {
        **found,
        "description": f"{title}. {lead}",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": config,
    }


@functools.cache
def _style() -> dict[str, Any]:
    found: dict[str, Any] = alt.Config(
        background="transparent",
        font="system-ui, sans-serif",
        axis=alt.AxisConfig(
            labelFontSize=12, labelSeparation=6, titleFontSize=12, titleFontWeight="normal"
        ),
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


def line_chart(
    rows: Iterable[Row], x: alt.X, y: alt.Y, series: str, names: Sequence[str], point: int,
    tooltip: Sequence[alt.Tooltip], **more: Any,
) -> Any:  # fmt: skip
    """Return lines through points, one for each of ``names``; a single one needs no legend."""
    short = told_apart(names, LEGEND_LETTERS)
    shown = list(short.values())
    color = alt.Color(f"{series}:N", sort=shown, title=None, legend=legend_of(shown))
    named = ({**row, series: short.get(row[series], row[series])} for row in rows)
    chart = alt.Chart(values(named)).mark_line(point={"size": point}, strokeWidth=2)
    return chart.encode(x=x, y=y, color=color, tooltip=tooltip, **more)


def legend_of(names: Sequence[str]) -> alt.Legend | None:
    """Return a legend that fits a phone's width; none for a single name."""
    longest = max(map(len, names), default=0)
    return (
        alt.Legend(columns=3 if longest <= 12 else 2 if longest <= 20 else 1) if names[1:] else None
    )


def feature_bars(
    rows: Sequence[Row], x: alt.X, value: str, series: str, names: Sequence[str],
    tooltip: Sequence[alt.Tooltip],
) -> tuple[Any, str]:  # fmt: skip
    """Return bars of the features with the most, and a sentence where others are left out."""
    most: dict[str, float] = {}
    for row in rows:
        most[row["feature"]] = max(most.get(row["feature"], 0.0), float(row[value] or 0.0))
    top = sorted(most, key=lambda name: -most[name])[:TOP_FEATURES]
    y = alt.Y("feature:N", sort=top, title=None, axis=alt.Axis(labelLimit=200))
    encodings: dict[str, Any] = {"x": x, "y": y, "tooltip": tooltip}
    if names[1:]:
        encodings["yOffset"] = alt.YOffset(f"{series}:N", sort=list(names))
        encodings["color"] = alt.Color(
            f"{series}:N", sort=list(names), title=None, legend=legend_of(names)
        )
    height = len(top) * (4 + 12 * len(names) if names[1:] else 20)
    shown = [row for row in rows if row["feature"] in top and row[value] is not None]
    chart = alt.Chart(values(shown), width="container", height=height).mark_bar(color=PALETTE[0])
    said = (
        f" The first {len(top)} of {len(most)}; the table has all." if len(most) > len(top) else ""
    )
    return chart.encode(**encodings), said


def axis_of_counts(most: int, **more: Any) -> alt.Axis:
    """Return an axis of whole numbers up to ``most``, none of which comes twice."""
    if most <= 12:
        return alt.Axis(values=list(range(most + 1)), format="d", **more)
    return alt.Axis(tickMinStep=1, format="d", **more)


class _Rows(alt.InlineData):
    """Rows that charts share: Altair copies a chart, data and all, at each of its methods."""

    def __deepcopy__(self, memo: object) -> _Rows:
        return self


def values(rows: Iterable[Row]) -> alt.InlineData:
    """Return rows as data inside the specification."""
    return _Rows(values=list(rows))


def tips(*channels: str | alt.Tooltip) -> list[alt.Tooltip]:
    """Return what is shown of a point under the pointer; Altair is slow to see what words mean."""
    return [alt.Tooltip(one) if isinstance(one, str) else one for one in channels]


def bytes_axis(**more: Any) -> alt.Axis:
    """Return an axis of bytes."""
    return alt.Axis(format="~s", tickCount=5, **more)
