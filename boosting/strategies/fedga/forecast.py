"""Rounds and bytes of a search before anyone trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hedgerow.boosting.allowances import UNBOUNDED, StepQuota
from hedgerow.boosting.budget import NOT_REPEATABLE
from hedgerow.boosting.exchange import Call, Silo
from hedgerow.boosting.strategies.fedga.steps import (
    DEPTHS,
    PROPOSALS,
    REPORTS,
    REVEALS,
    SCORES,
    STANDING,
)
from hedgerow.boosting.trees.genetics import gene_count
from hedgerow.boosting.work import Forecast, Work

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.fedga.parameters import FedGA

_FRAMES_UP, _FRAMES_DOWN = 55, 41
"""Bytes of an exchange beside genes and scores, measured."""


def forecast(
    parameters: FedGA, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
) -> Forecast:
    """Return what a silo exchanges in a search of the largest depth that does not stop early.

    Each generation a drawn silo receives ``population`` new structures, in as many bits a gene as
    the number of features has, and answers two bytes for each; at the end it receives the
    finalists.
    """
    gene_bits = max(schema.n_features, 1).bit_length()
    structure = gene_count(parameters.max_depth) * gene_bits / 8
    rows = sum(n_samples.values()) / max(len(n_samples), 1)
    exchanges = parameters.generations + 4
    asked = parameters.participation * parameters.generations * parameters.population
    down = (asked + parameters.n_finalists) * structure + exchanges * _FRAMES_DOWN
    up = asked * 2 + 2 * structure + exchanges * _FRAMES_UP
    notes = [
        f"for trees of depth {parameters.max_depth}, the largest that silos may vote for: each "
        "level less halves the bytes down",
        "each silo's tree stays in the silo",
    ]
    if 0 < parameters.patience < parameters.generations:
        notes.insert(
            1, f"the search ends before, after {parameters.patience} rounds without progress"
        )
    if math.isfinite(parameters.epsilon_rows):
        notes.append(NOT_REPEATABLE)
    return Forecast(
        rounds=parameters.generations,
        steps={Call.SCORES.value: (exchanges, round(up), round(down))},
        reveals=REVEALS,
        notes=tuple(notes),
        cpu_class="seconds",
        work={Call.SCORES.value: {Work.CELL: 6.5 * asked * rows * parameters.max_depth}},
    )


def allowances(
    parameters: FedGA, job: JobParameters, schema: Schema, n_silos: int
) -> tuple[StepQuota, ...]:
    """Return where each step may happen: one set of scores a generation."""
    # A silo that starts late may be sent on to a round that will not be, with nothing to score.
    rounds = parameters.generations + 1
    return (
        StepQuota(STANDING, UNBOUNDED, rounds, UNBOUNDED),
        StepQuota(DEPTHS, 1),
        StepQuota(PROPOSALS, 1, 1, 2),
        StepQuota(SCORES, rounds, rounds, 3),
        StepQuota(REPORTS, 1, rounds, 4),
    )
