"""The report's page: template, style, script and Vega in one file, and nothing fetched."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from markupsafe import Markup

from hedgerow.boosting.ports import Horizontal, strategy_of
from hedgerow.boosting.strategies import NAMES
from hedgerow.coordinator.operator.progress import size
from hedgerow.coordinator.operator.report import figures, quality
from hedgerow.coordinator.operator.report.drawing import Cell, Figure, amount, number, text
from hedgerow.coordinator.operator.report.parties import forest_of_parties
from hedgerow.coordinator.operator.report.rates import rates
from hedgerow.coordinator.operator.report.runs import FinishedRun
from hedgerow.coordinator.operator.report.trees import Forest, forest_of

_VEGA = "window.vegaEmbed = vegaEmbed;"
"""What of the bundled library the page's script uses."""


def render(runs: Sequence[FinishedRun], title: str = "") -> str:
    """Return the page of some runs, side by side.

    Parameters
    ----------
    runs : sequence of FinishedRun
        At least one.
    title : str
        Heading; made of the runs' names if empty.

    Raises
    ------
    RunUnusable
        A model file in a run folder is damaged.
    """
    import jinja2

    forests = [
        (run, forest)
        for run in runs
        if (forest := forest_of(run) or forest_of_parties(run)) is not None
    ]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hedgerow.coordinator.operator.report", "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = size
    environment.filters["paragraphs"] = paragraphs
    sections = _sections(runs, forests)
    specs = {f.key: f.spec for _, _, found in sections for f in found if f.spec is not None}
    return environment.get_template("page.html").render(
        title=title or _title(runs),
        runs=runs,
        overview=_overview(runs),
        sections=sections,
        forests=forests,
        summaries=[(run, _summary_of(run)) for run in runs],
        silos=[(run, _silos(run), _rounded(run)) for run in runs],
        specs=_script_safe(json.dumps(specs, allow_nan=False)),
        vega=_vega(),
        style=Markup(_asset("page.css")),  # noqa: S704
        script=Markup(_asset("page.js")),  # noqa: S704
    )


def paragraphs(text: str) -> list[str]:
    """Return a statement's paragraphs: a line break inside a sentence is none."""
    return [" ".join(part.split()) for part in re.split(r"(?<=[.:;])\n", text) if part.strip()]


@functools.cache
def _vega() -> Markup:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    code = vl_convert.javascript_bundle(_VEGA)
    return Markup(code.replace("</script", "<\\/script"))  # noqa: S704


def _asset(name: str) -> str:
    return (resources.files("hedgerow.coordinator.operator.report") / "page" / name).read_text(
        encoding="utf-8"
    )


def _script_safe(text: str) -> Markup:
    """Return JSON that cannot end the script element that it is in."""
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028"))  # noqa: S704


def _title(runs: Sequence[FinishedRun]) -> str:
    if len(runs) == 1:
        return runs[0].report.name or runs[0].label
    return " · ".join(run.label for run in runs)


def _sections(
    runs: Sequence[FinishedRun], forests: Sequence[tuple[FinishedRun, Forest]]
) -> list[tuple[str, str, list[Figure]]]:
    """Return (anchor, heading, figures) of the sections that are made of plots."""
    found: list[tuple[str, str, list[Figure | None]]] = [
        (
            "quality",
            "Quality",
            [
                *quality.quality(runs),
                quality.cost_of_quality(runs),
                *quality.quality_by_silo(runs),
            ],
        ),
        ("bytes", "What travelled", [figures.bytes_by_step(runs), figures.bytes_by_silo(runs)]),
        ("time", "Time", [figures.times(runs), *figures.rounds(runs)]),
        ("features", "Features", [figures.importance(forests)]),
        ("rates", "Learnt rates", [*rates(runs)]),
    ]
    kept = [(key, name, [f for f in parts if f is not None]) for key, name, parts in found]
    return [section for section in kept if section[2]]


def _overview(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """Return the table at the top: a column for each run."""
    names = list(dict.fromkeys((d, m) for run in runs for d, m in _best(run)))
    rows: list[tuple[str, list[Cell]]] = [
        ("strategy", [text(run.report.strategy) for run in runs]),
        ("state", [text(_state(run)) for run in runs]),
        ("silos", [text(len(run.report.silos)) for run in runs]),
        ("rounds", [number(len(run.report.rounds)) for run in runs]),
        ("seconds", [number(run.report.seconds, f"{run.report.seconds:.1f}")
                     for run in runs]),
        ("bytes up, all silos", [amount(run.report.bytes.up) for run in runs]),
        ("bytes down, all silos", [amount(run.report.bytes.down) for run in runs]),
        ("control plane", [amount(run.report.bytes.control.up
                                          + run.report.bytes.control.down) for run in runs]),
    ]  # fmt: skip
    for data, name in names:
        cells = []
        for run in runs:
            found = _best(run)
            missing = Cell("–")
            cells.append(number(found[data, name]) if (data, name) in found else missing)
        rows.append((f"{name} on {data}, best round", cells))
    return {"runs": [run.label for run in runs], "rows": rows}


def _best(run: FinishedRun) -> dict[tuple[str, str], float | None]:
    best = run.report.best
    if best is None:
        return {}
    return {
        (data, name): best.metrics[data][name]
        for data in run.report.data_sets
        if data in best.metrics
        for name in best.metrics[data]
    }


def _state(run: FinishedRun) -> str:
    summary = run.report.state.lower()
    if run.report.attempts > 1:
        summary += f" after {run.report.attempts} attempts"
    return summary + (f": {run.report.detail}" if run.report.detail else "")


def _rounded(run: FinishedRun) -> bool:
    """Whether silos tell the coordinator the class of their row count only."""
    name = run.report.strategy
    if name not in NAMES:
        return False
    layout = strategy_of(name).layout
    return not (isinstance(layout, Horizontal) and layout.exact_rows)


def _silos(run: FinishedRun) -> list[tuple[str, list[Cell]]]:
    """Return a row for each silo: rows, bytes, standing, ledger."""
    rows = []
    for silo in run.report.silos:
        ledger = run.ledgers.get(silo.name)
        checked = "not in the run folder"
        if ledger is not None:
            more = ledger.sent(run.report.job) - silo.bytes_up
            checked = f"{len(ledger.entries):,} lines hold, bytes equal"
            if more:
                checked = f"{len(ledger.entries):,} lines hold, {size(more)} sent again"
        present = sum(silo.name in r.silos for r in run.report.rounds)
        standing = silo.state + (f": {silo.detail}" if silo.detail else "")
        rows.append(
            (
                silo.name,
                [
                    number(silo.rows, f"{silo.rows:,}"),
                    text(standing),
                    number(present, f"{present} of {len(run.report.rounds)}"),
                    amount(silo.bytes_up),
                    amount(silo.bytes_down),
                    text(checked),
                ],
            )
        )
    return rows


def _summary_of(run: FinishedRun) -> list[tuple[str, str, int, int, str]]:
    """Return (step, payload, times, bytes, what it tells) over all ledgers of a run."""
    from hedgerow.services.process.ledgers import totals

    entries = [
        e for found in run.ledgers.values() for e in found.entries if e.job == run.report.job
    ]
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for total in totals(entries):
        key = (total.step, total.kind, total.reveals)
        times, moved = sums.get(key, (0, 0))
        sums[key] = (times + total.payloads, moved + total.bytes)
    return [
        (step, kind, times, moved, tells) for (step, kind, tells), (times, moved) in sums.items()
    ]
