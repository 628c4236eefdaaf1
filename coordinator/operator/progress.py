"""A job as it goes: one line a round, with a progress bar on a terminal."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable
from statistics import mean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hedgerow.boosting.ports import Vertical, strategy_of
from hedgerow.services.process.texts import one_line
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.job_view import OWN_TESTS, FinishedRound, JobView, PlanView, SiloState

RECENT = 10
"""Rounds by whose seconds it is told how long the others take."""


def size(n_bytes: float) -> str:
    """Return a number of bytes for people: 512 B, 1.5 kB, 2.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000 or unit == "GB":
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    raise AssertionError("the last unit returns")


def score(value: float) -> str:
    """Return a metric with five decimals, or with five digits where it is very small or large."""
    if value == 0 or not math.isfinite(value) or 1e-3 <= abs(value) < 1e6:
        return f"{value:.5f}"
    return f"{value:.5g}"


def tenths(seconds: float | None) -> str:
    """Return seconds for a table; nothing where they are not known."""
    return "" if seconds is None else f"{seconds:.1f}"


def headline(plan: PlanView) -> str:
    """Return a plan's rounds and how long they take: 20 rounds, about 12 s."""
    if plan.seconds is None:
        return f"{plan.rounds} rounds, CPU time a silo: {plan.cpu_class}"
    return f"{plan.rounds} rounds, about {duration(plan.seconds)}"


def duration(seconds: float) -> str:
    """Return a time for people: 1.5 s, 12 s, 3.2 min, 20 h."""
    took, unit = seconds, "s"
    for larger in ("min", "h"):
        if took < 100:
            break
        took, unit = took / 60, larger
    return f"{took:.{0 if took >= 10 else 1}f} {unit}"


def standing(n_done: int, n_all: int, recent: Iterable[float]) -> tuple[str, str]:
    """Return how far a job is, and how long it still takes by the seconds of ``recent`` rounds."""
    took = list(recent)
    left = f"left {duration(mean(took) * max(n_all - n_done, 0))}" if took else ""
    return f"{n_done}/{n_all} rounds", left


def paragraphs(text: str) -> list[str]:
    """Return the sentences of a statement, each in one line."""
    return [" ".join(part.split()) for part in re.split(r"(?<=\.)\s+(?=[A-Z])", text.strip())]


class JobProgress:
    """Shows the views of a watched job.

    Parameters
    ----------
    console : rich.console.Console
        Where to; without a terminal there are plain lines only.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0
        self._total = 0
        self._first = 1
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._silos: dict[str, str] = {}
        self._detail = ""
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> JobProgress:
        """Start the bar on a terminal."""
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[rounds]}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("waiting for silos", total=None, rounds="")
            self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def show(self, view: JobView) -> None:
        """Show what is new in a view."""
        if not self._total:
            job = job_wire.decode(view.spec)
            self._first = job.strategy.first_round
            self._total = job.parameters.n_results
        for silo in view.silos:
            known = self._silos.get(silo.name)
            if known != silo.state:
                self._silos[silo.name] = silo.state
                if known is not None or silo.state is not SiloState.PRESENT:
                    why = f": {silo.detail}" if silo.detail else ""
                    line = f"silo {silo.name} is {silo.state}{why}"
                    self._console.print(one_line(line), markup=False, soft_wrap=True)
        if view.detail != self._detail and not view.ended:
            self._detail = view.detail
            if view.detail:
                detail = one_line(view.detail)
                self._console.print(detail, markup=False, highlight=False, soft_wrap=True)
        for finished in view.rounds:
            if finished.round >= self._shown:
                self._shown = finished.round + 1
                self._recent.append(finished.seconds)
                self._console.print(
                    self._line(finished), markup=False, highlight=False, soft_wrap=True
                )
        if self._bar is not None and self._shown:
            rounds, _ = standing(self._shown, self._total, self._recent)
            self._bar.update(
                self._task, description="training", completed=self._shown, total=self._total,
                rounds=rounds,
            )  # fmt: skip

    def _line(self, r: FinishedRound) -> str:
        scores = "  ".join(
            f"{data} {name} {score(value)}"
            for data, metrics in sorted(r.metrics.items())
            for name, value in metrics.items()
            if not data.startswith(OWN_TESTS)
        )
        n = max(len(r.silos), 1)
        _, left = standing(self._shown, self._total, self._recent)
        return (
            f"round {r.round + self._first:>3}/{self._total - 1 + self._first}  {scores}  "
            f"{len(r.silos)} silos  up {size(r.bytes_up / n)} down {size(r.bytes_down / n)} "
            f"a silo  {r.seconds:.2f} s  {left}"
        )


def outcome(detail: str, reasons: Iterable[str]) -> str:
    """Return why a job failed without the silos' own reasons, which stand beside it already."""
    for reason in sorted(filter(None, reasons), key=len, reverse=True):
        detail = detail.replace(f" ({reason})", "")
    return detail


def summary(report: dict[str, Any]) -> Iterable[str]:
    """Yield the closing lines of a finished job."""
    moved = report["bytes"]
    first = strategy_of(report["strategy"]).first_round
    n_rounds = max(len(report["rounds"]) - 1 + first, 0)
    yield (
        f"{report['state'].lower()}: {n_rounds} rounds in {report['seconds']:.1f} s, "
        f"{size(moved['up'])} up and {size(moved['down'])} down, "
        f"control plane {size(moved['control']['up'] + moved['control']['down'])}"
    )
    if report.get("warm_start"):
        yield one_line(f"goes on from the model of run {report['warm_start']['run']}")
    if alignment := report.get("alignment"):
        rows = ", ".join(f"{party} {n:,}" for party, n in alignment["rows"].items())
        yield one_line(f"{alignment['common']:,} rows are common to all parties; rows: {rows}")
    for warning in report.get("warnings", ()):
        yield one_line(f"warning: {warning}")
    if report["rounds"]:
        best = next(
            (r for r in report["rounds"] if r["round"] == report["best_round"]),
            report["rounds"][-1],
        )
        vertical = isinstance(strategy_of(report["strategy"]).layout, Vertical)
        if vertical and not any(r["metrics"] for r in report["rounds"]):
            yield "no scores: the active party's policy keeps them there (may_send has no scores)"
        own = {k: v for k, v in report["rounds"][-1]["metrics"].items() if k.startswith(OWN_TESTS)}
        for data, scores in sorted((best["metrics"] | own).items()):
            text = ", ".join(
                f"{name} {score(value)}" for name, value in scores.items() if value is not None
            )
            if text and data in own:
                yield f"test rows of silo {data.removeprefix(OWN_TESTS)}: {text}"
            elif text:
                yield f"round {best['round']}, {data}: {text}"
            if (scores.get("auc") or 1.0) <= 0.5:
                yield f"warning: auc of {data} is no better than chance, which is 0.5"
        for silo in report["silos"]:
            if silo["state"] != SiloState.PRESENT.value:
                why = f": {silo['detail']}" if silo["detail"] else ""
                yield one_line(f"without silo {silo['name']}, {silo['state']}{why}")
            elif silo["detail"]:
                yield one_line(f"silo {silo['name']} {silo['detail']}")
