"""The report's page: template, style, script and Vega in one file, and nothing fetched."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from typing import Any

from markupsafe import Markup

from hedgerow.boosting.ports import Horizontal, strategy_of
from hedgerow.boosting.registry import STRATEGIES
from hedgerow.coordinator.operator.progress import headline, paragraphs, size, tenths
from hedgerow.coordinator.operator.report import figures, quality, survival
from hedgerow.coordinator.operator.report.audited import audited
from hedgerow.coordinator.operator.report.drawing import (
    Cell,
    Figure,
    amount,
    number,
    table_rows,
    text,
)
from hedgerow.coordinator.operator.report.explored import explored
from hedgerow.coordinator.operator.report.overview import overview, sentence, warnings
from hedgerow.coordinator.operator.report.parties import forest_of_parties
from hedgerow.coordinator.operator.report.rates import rates
from hedgerow.coordinator.operator.report.runs import FinishedRun
from hedgerow.coordinator.operator.report.trees import DrawnTrees, forest_of

_PAGE = "page.html"
_BUNDLING = threading.Lock()
_BUNDLE = (
    "import sys, vl_convert\n"
    "code = vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')\n"
    "sys.stdout.buffer.write(code.encode())"
)
"""Prints the library with what the page's script uses of it."""


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
    forests = [
        (run, forest)
        for run in runs
        if (forest := forest_of(run) or forest_of_parties(run)) is not None
    ]
    sections = sections_of(runs, forests)
    specs = specs_of(sections)
    cuts = {f.key: f.thresholds for _, _, found in sections for f in found if f.thresholds}
    page: str = (
        _pages()
        .get_template(_PAGE)
        .render(
            title=title or _title(runs),
            runs=runs,
            overview=overview(runs),
            sentences=[(run.label, sentence(run)) for run in runs],
            warnings=[(run.label, why) for run in runs for why in warnings(run)],
            sections=sections,
            forests=forests,
            summaries=[(run, _summary_of(run)) for run in runs],
            silos=[(run, _silos(run), _rounded(run)) for run in runs],
            specs=_script_safe(json.dumps(specs, allow_nan=False)),
            thresholds=_script_safe(json.dumps(cuts, allow_nan=False)),
            vega=vega(),
            style=Markup(asset("page.css")),  # noqa: S704
            script=Markup(asset("page.js")),  # noqa: S704
        )
    )
    return page


def load_page() -> None:
    """Compile the page's template, for which the first page would wait."""
    _pages().get_template(_PAGE)


@functools.cache
def _pages() -> Any:
    import jinja2

    return templates(jinja2.PackageLoader("hedgerow.coordinator.operator.report", "page"))


def specs_of(sections: Sequence[tuple[str, str, list[Figure]]]) -> dict[str, Any]:
    """Return the specifications of the plots by their keys."""
    return {f.key: f.spec for _, _, found in sections for f in found if f.spec is not None}


def templates(*loaders: Any) -> Any:
    """Return an environment of Jinja that finds templates by the first loader that has them."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        one.__name__: one for one in (headline, paragraphs, size, table_rows, tenths)
    }
    return environment


def vega() -> Markup:
    """Return Vega, Vega-Lite and Vega-Embed as one script; the first time takes seconds."""
    with _BUNDLING:
        return _vega()


@functools.cache
def _vega() -> Markup:
    import vl_convert  # noqa: F401  # so that it is named where it is missing

    # In a process of its own: for seconds no other thread of its process would run. Ctrl-C is for
    # this process only.
    command = [sys.executable, "-c", _BUNDLE]
    made = subprocess.run(command, capture_output=True, check=True, start_new_session=True)
    code = made.stdout.decode()
    return Markup(code.replace("</script", "<\\/script"))  # noqa: S704


def asset(name: str) -> str:
    """Return a file of the page."""
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


def sections_of(
    runs: Sequence[FinishedRun], forests: Sequence[tuple[FinishedRun, DrawnTrees]]
) -> list[tuple[str, str, list[Figure]]]:
    """Return (anchor, heading, figures) of the sections that are made of plots."""
    found: list[tuple[str, str, list[Figure | None]]] = [
        (
            "quality",
            "Quality",
            [*quality.quality(runs), quality.cost_of_quality(runs), *quality.quality_by_silo(runs)],
        ),
        ("statistics", "Statistics", [*explored(runs)]),
        ("evaluation", "Evaluation", [*_evaluation(runs)]),
        ("survival", "Survival", [survival.kaplan_meier(runs)]),
        ("audit", "Audit", [*audited(runs)]),
        ("bytes", "What travelled", [figures.bytes_by_step(runs), figures.bytes_by_silo(runs)]),
        ("time", "Time", [figures.times(runs), *figures.rounds(runs)]),
        ("features", "Features", [figures.importance(forests), *figures.curves(forests)]),
        ("rates", "Learnt rates", [*rates(runs)]),
    ]
    kept = [(key, name, [f for f in parts if f is not None]) for key, name, parts in found]
    return [section for section in kept if section[2]]


def _evaluation(runs: Sequence[FinishedRun]) -> list[Figure]:
    """Return the plots of the runs' evaluations; only they need scikit-learn, slow to import."""
    if not any(run.evaluation for run in runs):
        return []
    from hedgerow.coordinator.operator.report import curves

    return curves.evaluation(runs)


def _rounded(run: FinishedRun) -> bool:
    """Whether silos tell the coordinator the class of their row count only."""
    name = run.report.strategy
    if name not in STRATEGIES.installed():
        return False
    layout = strategy_of(name).layout
    return not (isinstance(layout, Horizontal) and layout.exact_rows)


def _silos(run: FinishedRun) -> list[tuple[str, list[Cell]]]:
    """Return a row for each silo: rows, bytes, standing, ledger."""
    rows = []
    rounds_of = Counter(name for r in run.report.rounds for name in r.silos)
    for silo in run.report.silos:
        ledger = run.ledgers.get(silo.name)
        checked = "not in the run folder"
        if ledger is not None:
            more = ledger.sent(run.report.job) - silo.bytes_up
            checked = f"{len(ledger.entries):,} lines hold, bytes equal"
            if more:
                checked = f"{len(ledger.entries):,} lines hold, {size(more)} sent again"
        present = rounds_of[silo.name]
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
