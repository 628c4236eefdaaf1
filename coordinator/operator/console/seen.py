"""What the console's pages show of jobs: a job as the run that its report has, and its events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hedgerow.boosting.selection import FILE, statistics_of
from hedgerow.coordinator.operator import run_folder
from hedgerow.coordinator.operator.library.clients import files_of, listed
from hedgerow.coordinator.operator.progress import RECENT, duration, outcome, standing
from hedgerow.coordinator.operator.report.runs import FinishedRun, Report
from hedgerow.coordinator.operator.report.trees import Drawing, DrawnTrees, Importance
from hedgerow.services.process.terminal import utc
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_view import (
    FinishedRound,
    JobSilo,
    JobState,
    JobView,
    PlanView,
    Score,
    SiloState,
    StepTotal,
)

_EXAMPLE = ("a", "b", "c")


def clock(seconds: float | None) -> str:
    """Return a time as people read it."""
    if not seconds:
        return "–"
    return f"{utc(seconds)} UTC"


def example_view() -> JobView:
    """Return a dummy job; rendering it once warms up the imports."""
    spec = job_file.parse(f'strategy = "bagging"\nlabel = "y"\nmin_silos = {len(_EXAMPLE)}\n')
    rounds = tuple(
        FinishedRound(k, 1, 1.0, (Score("train", "auc", 0.9),), 1000, 1000, _EXAMPLE)
        for k in range(2)
    )
    return JobView(
        job_id="", spec=spec, state=JobState.SUCCEEDED, detail="", attempt=1,
        silos=tuple(JobSilo(name, 1024, SiloState.PRESENT, "") for name in _EXAMPLE),
        rounds=rounds, steps=tuple(StepTotal(s, "ExchangeTrees", 2, 2, 2, 9, 9) for s in _EXAMPLE),
        create_time=1.0, end_time=2.0, operator="", best_round=1, artefacts=(), model="",
        reveals="", control_bytes_up=0, control_bytes_down=0, job_digest="",
    )  # fmt: skip


def example_forest() -> DrawnTrees:
    """Return trees that go with :func:`example_view`."""
    drawing = Drawing("tree 1", 1.0, 1.0, (), (), ())
    return DrawnTrees((drawing.name,), (Importance("x", 1.0, 1),), (drawing,))


def run_of(view: JobView, plan: PlanView | None, now: float, label: str = "") -> FinishedRun:
    """Return a job, finished or not, as the run that the report's figures draw.

    Parameters
    ----------
    now : float
        Until when a job that has not ended has taken its time.
    label : str
        Name among several runs; the job's own if empty.
    """
    part = None if plan is None else run_folder.plan_by_silo(plan)
    report = Report.model_validate(run_folder.report(view, part, now))
    label = label or report.name or view.job_id
    return FinishedRun(Path(), label, report, "", {}, {}, None)


def downloaded(client: JobClient, view: JobView, folder: Path) -> FinishedRun:
    """Write the files of a job's result into a folder and return the job as the run with them.

    Raises
    ------
    FederationError
        A file cannot be had, or its name has a path.
    """
    files = files_of(client, view)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    found = run_folder.report(view, run_folder.planned(view, files))
    found |= run_folder.unusual(files, view)
    report = Report.model_validate(found)
    text = job_file.dump(view.spec)
    told = statistics_of(folder) if FILE in files else None
    return FinishedRun(
        folder, report.name or view.job_id, report, text, {}, {}, None, statistics=told
    )


def why_of(view: JobView) -> str:
    """Return why a job failed or waits, without the silos' own reasons, which are events."""
    return outcome(view.detail, [silo.detail for silo in view.silos])


def approvals_of(view: JobView) -> list[tuple[str, str]]:
    """Return what people must sign of a job, and who has, as the coordinator says."""
    job, found = job_wire.decode(view.spec), []
    if job.approvals.approvers:
        said = job.approvals.without(view.operator).described(view.approved)
        found.append(("Approval of the job", said))
    if job.audit is not None:
        limits = " and".join(f" with {name} = {value:g}" for name, value in job.audit.limits)
        said = job.audit.approvals.without(view.operator).described(view.released)
        found.append((f"Release of the model, by an audit{limits}", said))
    return found


def asks_of(view: JobView, operator: str) -> bool:
    """Whether a job waits for an operator's approval."""
    asked = job_wire.decode(view.spec).approvals.without(view.operator)
    waits = not view.ended and bool(asked.missing(view.approved))
    return waits and operator in asked.approvers and operator not in view.approved


def events_of(view: JobView) -> list[tuple[str, str]]:
    """Return what happened to a job, in order: (when or where, what)."""
    found = [(clock(view.create_time), f"submitted by {view.operator}")]
    first = job_wire.decode(view.spec).strategy.first_round
    attempt = 0
    for finished in view.rounds:
        if finished.attempt != attempt:
            attempt = finished.attempt
            found.append(
                (
                    f"round {finished.round + first}",
                    f"attempt {attempt} {'goes on' if attempt > 1 else 'begins'}",
                )
            )
    if view.attempt > max(attempt, 1):
        found.append(("now" if not view.ended else "at last", f"attempt {view.attempt} began"))
    for silo in view.silos:
        if silo.state is not SiloState.PRESENT:
            found.append(
                ("now", f"{silo.name} is {silo.state}: {silo.detail or 'no reason known'}")
            )
    if view.detail:
        found.append((clock(view.end_time) if view.ended else "now", why_of(view)))
    if view.ended:
        found.append((clock(view.end_time), view.state.lower()))
    return found


def row_of(view: JobView, now: float | None = None) -> dict[str, Any]:
    """Return a job as the list of jobs shows it, with the time it has taken until ``now``."""
    took = (view.end_time or now or view.create_time) - view.create_time
    return {
        **listed(view),
        "created": clock(view.create_time),
        "ended": view.ended,
        "took": duration(max(took, 0.0)),
    }


def progress_of(view: JobView) -> dict[str, Any]:
    """Return how far a job is, in the words of ``hedgerow watch``."""
    n_all = job_wire.decode(view.spec).parameters.n_results
    rounds, left = standing(
        len(view.rounds), n_all, (done.seconds for done in view.rounds[-RECENT:])
    )
    return {"done": len(view.rounds), "all": n_all, "rounds": rounds, "left": left}


SENT_HEADS = (
    "silo", "step", "payloads sent", "bytes sent", "exchanges counted", "bytes counted", "",
)  # fmt: skip
"""Headings of :func:`sent_of`'s rows."""


def sent_of(view: JobView) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return tables of what silos say that they sent and the coordinator counted.

    Each has a caption and rows: of each silo and step, of each step, of each silo.
    """
    said = {(one.silo, one.method): (one.payloads, one.bytes) for one in view.sent}
    counted = {(one.silo, one.method): (one.calls, one.bytes_up) for one in view.steps}
    reported = {silo for silo, _ in said}
    keys = sorted(said.keys() | counted.keys())
    everybody = {silo for silo, _ in keys}

    def row(who: str, what: str, of: list[tuple[str, str]], known: bool) -> dict[str, Any]:
        payloads, sent = (sum(said.get(key, (0, 0))[j] for key in of) for j in (0, 1))
        exchanges, n_bytes = (sum(counted.get(key, (0, 0))[j] for key in of) for j in (0, 1))
        good: bool | None = None  # neither good nor bad
        if not known:
            verdict = "not reported"
        elif sent > n_bytes:
            verdict = f"{sent - n_bytes:,} bytes more sent"
        elif sent < n_bytes:
            verdict = f"{n_bytes - sent:,} bytes fewer sent"
            good = False if view.ended else None
        else:
            verdict, good = "equal", True
        return {
            "silo": who, "step": what, "payloads": payloads if known else None,
            "sent": sent if known else None, "exchanges": exchanges, "counted": n_bytes,
            "verdict": verdict, "good": good,
        }  # fmt: skip

    if not keys:
        return []
    silos, steps = sorted(everybody), sorted({step for _, step in keys})
    return [
        (
            "Totals by step",
            [
                row("all silos", step, [key for key in keys if key[1] == step],
                    reported >= everybody)
                for step in steps
            ]
            + [row("all silos", "all steps", keys, reported >= everybody)],
        ),
        (
            "Totals by silo",
            [
                row(silo, "all steps", [key for key in keys if key[0] == silo], silo in reported)
                for silo in silos
            ],
        ),
        ("By silo and step", [row(*key, [key], key[0] in reported) for key in keys]),
    ]  # fmt: skip
