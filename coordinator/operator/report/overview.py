"""What a report says first: a sentence a run, warnings, and the table of all runs and baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import InvalidJob
from hedgerow.coordinator.operator.progress import outcome, size
from hedgerow.coordinator.operator.report.drawing import Cell, amount, number, text
from hedgerow.coordinator.operator.report.quality import baselines_of
from hedgerow.coordinator.operator.report.runs import Curve, FinishedRun
from hedgerow.services.wire.job_view import OWN_TESTS

_NOTHING = Cell("–")


def sentence(run: FinishedRun) -> str:
    """Return a run's result in one sentence: its score, what others reach, what was moved."""
    moved = f"{size(run.report.bytes.up + run.report.bytes.down)} moved"
    best = best_scores(run)
    data = run.report.data_sets[0] if run.report.data_sets else ""
    name = next((n for d, n in best if d == data and best[d, n] is not None), "")
    if not name:
        return f"{run.report.state.capitalize()}; {moved}."
    found = [f"federated {_shown(best[data, name])}"]
    curves = run.baselines.curves if run.baselines else ()
    alone = best_alone([curve for curve in curves if curve.kind == "local"], name)
    if alone is not None:
        who = alone.who.removesuffix(" alone")
        found.append(f"best silo alone {_shown(_last(alone, name))} ({who})")
    for kind, who in (("mean", "mean of the silos' models"), ("pooled", "pooled")):
        for curve in curves:
            if curve.kind == kind and _last(curve, name) is not None:
                found.append(f"{who} {_shown(_last(curve, name))}")
    return f"{name} on {data} rows: {'; '.join(found)}; {moved}."


def best_alone(curves: Sequence[Curve], name: str) -> Curve | None:
    """Return the curve that ends best; None where none has the metric."""
    found: Curve | None = None
    for curve in curves:
        value = _last(curve, name)
        known = None if found is None else _last(found, name)
        if value is not None and (known is None or _is_better(name, value, known)):
            found = curve
    return found


def warnings(run: FinishedRun) -> list[str]:
    """Return where a result is no better than chance."""
    found: dict[str, str] = {}
    for (data, name), value in best_scores(run).items():
        if name == "auc" and value is not None and value <= 0.5:
            found[data] = f"auc on {data} rows is {value:.3f}: no better than chance, which is 0.5"
    if run.evaluation is None:
        return list(found.values())
    from hedgerow.coordinator.operator.report.curves import scored_classes, tables_of

    for name, table in tables_of([run]):
        for one in scored_classes(name, table):
            if one.auc is not None and one.chance is not None and one.auc < one.chance:
                found[one.name] = (
                    f"auc on {one.name} is {one.auc:.3f}: not told apart from chance by "
                    f"{int(one.weight.sum()):,} rows (below {one.chance:.3f})"
                )
    return list(found.values())


def overview(runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """Return the table at the top: a column for each run, then for each baseline."""
    names = list(dict.fromkeys((d, m) for run in runs for d, m in best_scores(run)))
    rows: list[tuple[str, list[Cell]]] = [
        ("strategy", [text(run.report.strategy) for run in runs]),
        ("state", [text(_state(run)) for run in runs]),
        ("silos", [text(_taking_part(run)) for run in runs]),
        ("rounds", [number(len(run.report.rounds)) for run in runs]),
        *_started(runs),
        *_intervals(runs),
        ("seconds", [number(run.report.seconds, f"{run.report.seconds:.1f}")
                     for run in runs]),
        ("bytes up, all silos", [amount(run.report.bytes.up) for run in runs]),
        ("bytes down, all silos", [amount(run.report.bytes.down) for run in runs]),
        ("control plane", [amount(run.report.bytes.control.up
                                          + run.report.bytes.control.down) for run in runs]),
    ]  # fmt: skip
    others = _baselines(runs)
    rows = [(name, [*cells, *[_NOTHING] * len(others)]) for name, cells in rows]
    for data, name in names:
        cells = []
        for run in runs:
            found = best_scores(run)
            cells.append(number(found[data, name]) if (data, name) in found else _NOTHING)
        for _, curves in others:
            of_data = [curve for curve in curves if curve.data == data]
            best = best_alone(of_data, name)
            cells.append(_NOTHING if best is None else number(_last(best, name)))
        shown = (
            data.replace(OWN_TESTS, "test rows of silo ") if OWN_TESTS in data else f"{data} rows"
        )
        rows.append((f"{name} on {shown}", cells))
    return {"runs": [*(run.label for run in runs), *(name for name, _ in others)], "rows": rows}


def best_scores(run: FinishedRun) -> dict[tuple[str, str], float | None]:
    """Return the scores of the round that was selected, by data set and metric."""
    best = run.report.best
    if best is None:
        return {}
    return {
        (data, name): best.metrics[data][name]
        for data in run.report.data_sets
        if data in best.metrics
        for name in best.metrics[data]
    }


def _baselines(runs: Sequence[FinishedRun]) -> list[tuple[str, list[Curve]]]:
    """Return the baselines by name; of the silos alone the best is shown."""
    found: dict[str, list[Curve]] = {}
    for label, curve in baselines_of(runs):
        who = "best silo alone" if curve.kind == "local" else curve.who
        found.setdefault(f"{label}{who}", []).append(curve)
    return list(found.items())


def _started(runs: Sequence[FinishedRun]) -> list[tuple[str, list[Cell]]]:
    """Return a row of the runs that these went on from, if any did."""
    found = [run.report.warm_start for run in runs]
    if not any(found):
        return []
    return [("goes on from run", [_NOTHING if one is None else text(one.run) for one in found])]


def _intervals(runs: Sequence[FinishedRun]) -> list[tuple[str, list[Cell]]]:
    """Return a row of the intervals around predictions, if any run has asked for one."""
    told: list[Cell] = []
    for run in runs:
        one, lacks = run.report.interval, "interval" in run.report.lacks
        told.append(text("none was found") if lacks else _NOTHING)
        if one is not None:
            by = f"{one.width:.6g} on either side"
            told[-1] = text(f"{by}: {one.share:g} of {one.rows:,} rows held back")
    return [("interval", told)] if any(cell != _NOTHING for cell in told) else []


def _taking_part(run: FinishedRun) -> str:
    """Return how many silos took part, of how many where some did not."""
    every = [silo.name for silo in run.report.silos]
    took = {name for each in run.report.rounds for name in each.silos} & {*every}
    return str(len(every)) if len(took) in (0, len(every)) else f"{len(took)} of {len(every)}"


def _state(run: FinishedRun) -> str:
    summary = run.report.state.lower()
    if run.report.attempts > 1:
        summary += f" after {run.report.attempts} attempts"
    why = outcome(run.report.detail, [silo.detail for silo in run.report.silos])
    return summary + (f": {why}" if why else "")


def _last(curve: Curve, name: str) -> float | None:
    """Return a curve's last score that is known."""
    return next((r[name] for r in reversed(curve.rounds) if r.get(name) is not None), None)


def _is_better(name: str, value: float, than: float) -> bool:
    try:
        return metrics.better(name, value, than)
    except InvalidJob:  # a score of the strategy's own
        return value > than


def _shown(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.3g}" if abs(value) >= 1 else f"{value:.3f}"
