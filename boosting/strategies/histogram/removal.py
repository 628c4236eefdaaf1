"""In which round a row first mattered: what was trained before it is the same without the row.

With cut points and a start score of the job's own, bounded gradients and rows drawn regardless of
their gradients, nothing of a row is in a tree for which it was not drawn. The rounds before the
first one that drew it are then to the byte those of a training without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.ports import FROM_START
from hedgerow.boosting.streams import Purpose, Seed, generator, round_drawn

if TYPE_CHECKING:
    from hedgerow.boosting.exchange import Silo
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.histogram.parameters import Histogram


def _of_all_rows(parameters: Histogram, job: JobParameters) -> Iterator[str]:
    """Yield what in a job's rounds follows from all rows, also from those of no tree so far."""
    if parameters.binning != "given":
        yield f'cut points, with binning = "{parameters.binning}" (expected "given")'
    if job.booster.base_score is None:
        yield "the start score (expected base_score in [booster])"
    if parameters.validation:
        yield "which rows are held back (expected validation = 0, or validation_tables)"
    if parameters.early_stopping_rounds:
        yield "the last round (expected early_stopping_rounds = 0)"
    if job.columns.weighs:
        yield "the largest weight (expected rows without weights)"
    if parameters.ring_bits != 64 or not parameters.fraction_bits:
        yield "the bits of a gradient (expected ring_bits = 64 and fraction_bits above 0)"
    objective = objective_of(job.objective, job.task, job.booster, in_cells=True)
    if objective.bound is None or objective.by_risk_sets or objective.renews:
        whose = "the job's own loss" if job.booster.loss else job.objective
        yield f"the largest gradient of {whose} (expected bounded ones: classes)"


def why_from_start(parameters: Histogram, job: JobParameters, joined: int | None = None) -> str:
    """Return why no round is the same without a silo or rows, empty where some may be.

    Parameters
    ----------
    joined : int, optional
        Round in which the silo that is to go joined; None where rows are.
    """
    if joined is not None and parameters.silos_per_round:
        return "which silos a round draws, which follows from the list of all"
    if joined and not parameters.early_stopping_rounds:
        return ""  # the others had agreed on everything before
    return "; ".join(_of_all_rows(parameters, job))


def first_rounds(
    parameters: Histogram,
    job: JobParameters,
    silos: tuple[Silo, ...],
    silo: Silo,
    draws: Seed,
    n_rows: int,
) -> NDArray[np.int64]:
    """Return the round in which each of a silo's rows was first drawn.

    Parameters
    ----------
    silos : tuple of Silo
        All silos of the job, sorted.
    draws : int or OwnDraws
        What the silo's draws follow from.

    Returns
    -------
    ndarray of shape (n_rows,), int64
        From 0; the job's number of rounds for a row that no tree was grown on.

    Raises
    ------
    InvalidJob
        All rows matter from the first round; says why.
    """
    why = why_from_start(parameters, job)
    if parameters.sampling not in ("none", "uniform"):
        why = f'draws, with sampling = "{parameters.sampling}" (expected "none" or "uniform")'
    if why:
        raise InvalidJob(FROM_START + why)
    found = np.full(n_rows, parameters.rounds, np.int64)
    nothing = np.empty((n_rows, 0), np.float32)
    cohorts = parameters.cohorts(job)
    for r in range(parameters.rounds):
        if cohorts and silo not in cohorts[r]:
            continue
        at = silos.index(silo)
        rng = generator(draws, at, round_drawn(job, r), Purpose.SAMPLING)
        for _ in range(job.booster.num_parallel_tree):
            rows = parameters.sampler.draw(nothing, nothing, rng).rows
            found[rows] = np.minimum(found[rows], r)
    return found
