"""The job that trains a finished run's model again, without a silo or without rows of one.

What was trained before they first mattered is kept: the job goes on from those rounds of the model,
and its result is, to the byte, that of a training that never had them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.boosting import warm_start
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.trees.decision_tree import MODEL_FILE
from hedgerow.boosting.trees.loading import load
from hedgerow.coordinator.operator.library.jobs import Job, check_cohort, start_of
from hedgerow.coordinator.operator.library.models import report_of
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file


@dataclass(frozen=True, slots=True)
class Retraining:
    """A job that trains again what a run has trained with what is to go."""

    job: Job
    kept: int
    """Rounds of the run's model that stay as they are."""
    rounds: int
    """Rounds of that model."""
    why: str = ""
    """Why none is kept; empty where some are, or the first round was asked for."""
    changes: tuple[str, ...] = ()
    """What else is to be known of a job without a silo: keys that follow, and sums."""


def retraining(folder: Path, *, first: int | None = None, without: str = "") -> Retraining:
    """Return the job that trains a run's model again.

    Parameters
    ----------
    first : int, optional
        The first round, from 1, in which rows mattered that their silo has taken out of its table
        since; ``hedgerow first-round`` says it there.
    without : str
        A silo that is in no job of this table any more; its first round is that of the report.

    Raises
    ------
    InvalidJob
        The run has no such silo or round, or went on from another run itself; or the silos that are
        left cannot run the job.
    """
    report = report_of(folder)
    spec = job_wire.parse(job_file.load(folder / "job.toml"))
    job = job_wire.decode(spec.SerializeToString(deterministic=True))
    if (first is None) == (not without):
        raise InvalidJob("expected the first round in which rows mattered, or a silo's name")
    if job.vertical or spec.HasField("warm_start") or not report["model"]:
        raise InvalidJob(
            f"{folder}: expected a finished horizontal run with a model that started from nothing"
        )
    joined, changes = None, []
    if without:
        joined = _joined(report, without, folder)
        took_part = [one["name"] for one in report["silos"]]
        left = [name for name in spec.silos or took_part if name != without]
        del spec.silos[:]
        spec.silos.extend(left)
        if spec.min_silos > len(left):
            changes.append(f"min_silos is {len(left)}, where the run had {spec.min_silos}")
            spec.min_silos = len(left)
        try:
            less = job_wire.decode(spec.SerializeToString(deterministic=True))
            less.parameters.validate(less)
            check_cohort(less, tuple(left))
        except InvalidJob as error:
            raise InvalidJob(f"{folder}: without {without}: {error}") from None
        if spec.test_data:
            changes.append(
                f'test_data is "{spec.test_data}", as in the run: rows of {without} must not be in '
                "it; without the key nothing is scored there"
            )
        if less.strategy.least_silos(less.parameters) > 1 and not spec.max_close_sums:
            changes.append(
                f"sums without {without} and those of the run differ by what it added: silos "
                "decline the job at a coordinator unless max_close_sums allows it, in the job and "
                "in all their policies"
            )
    kept = joined if joined is not None else (first or 1) - 1
    file = folder / MODEL_FILE
    n_rounds = warm_start.n_rounds(load(file.read_bytes(), sender=str(file)))
    if not 0 <= kept < n_rounds:
        raise InvalidJob(
            f"the first round: expected 1 to {n_rounds}, the rounds of the model, received "
            f"{kept + 1}; what mattered in none of them is not in the model"
        )
    why = job.strategy.why_from_start(job.parameters, job, joined)
    if why:
        kept = 0
    if kept:
        start, own = start_of(folder, MODEL_FILE), getattr(spec, spec.strategy)
        spec.warm_start.run, spec.warm_start.model = start.run, start.model
        spec.warm_start.schema, spec.warm_start.rounds_before = start.schema, kept
        own.rounds = job.parameters.rounds - kept  # type: ignore[attr-defined]
        if getattr(own, "etas", ()):
            etas = list(own.etas)[kept:]
            del own.etas[:]
            own.etas.extend(etas)
        if alone := getattr(own, "one_output_rounds", ()):
            later = [one - kept for one in alone if one >= kept]
            del own.one_output_rounds[:]
            own.one_output_rounds.extend(later)
    made = Job.from_spec(spec.SerializeToString(deterministic=True))
    return Retraining(made, kept, n_rounds, why, tuple(changes))


def _joined(report: Mapping[str, Any], silo: str, folder: Path) -> int:
    """Return the first round, from 0, with trees of a silo's rows."""
    names = [one["name"] for one in report["silos"]]
    if silo not in names:
        raise InvalidJob(
            f"{folder}: expected a silo of the run ({', '.join(names)}), received {silo!r}"
        )
    rounds = [r for r, one in enumerate(report["rounds"]) if silo in one["silos"]]
    if not rounds:
        raise InvalidJob(f"{folder}: {silo} took part in no round, so that nothing of it is there")
    return rounds[0]
