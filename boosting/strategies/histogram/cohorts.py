"""Which silos a round's sums are over, where a job draws them.

A cohort follows from the signed job alone: its seed, its list of silos and the round, counted from
the first round of the model that it goes on from. Every party computes it, so that nobody chooses
it and no loss changes it. Sums over sets that change from round
to round can be subtracted from each other, and in time combined until one silo is left. So six
silos and more are drawn in the fixed groups of three to five over which all sums are unions:
by adding and subtracting, nothing finer than a group comes out (:mod:`.sums.groups`).

References
----------
So et al., Securing secure aggregation: mitigating multi-round privacy leakage in federated
learning, AAAI 2023 (batch partitioning).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.sums.groups import OpenedSets, groups_of
from hedgerow.boosting.sums.view import state_digest

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

Cohort = tuple[Silo, ...]


def cohort(silos: Sequence[str], count: int, seed: int, round_: int, size: int = 3) -> Cohort:
    """Return the silos of a round, sorted.

    Parameters
    ----------
    silos : sequence of str
        All silos that the job names, sorted.
    count : int
        How many a round has at least; 0 for all.
    size : int
        Fewest silos of a group.
    """
    groups = _units(tuple(silos), seed, size)
    order = sorted(
        range(len(groups)), key=lambda g: state_digest("hedgerow cohort v1", seed, round_, g)
    )
    drawn: list[Silo] = []
    for group in order:
        if drawn and (len(drawn) >= count > 0):
            break
        drawn += groups[group]
    return tuple(sorted(drawn))


def _units(silos: tuple[str, ...], seed: int, size: int) -> tuple[Cohort, ...]:
    """Return what is drawn: whole groups, or silos one by one where there is one group only."""
    groups = groups_of(silos, seed, size)
    return groups if len(groups) > 1 else tuple((silo,) for silo in groups[0])


def most_drawn(silos: Sequence[str], seed: int, size: int) -> int:
    """Return the largest number to draw that always leaves a group out; 0 where none does."""
    if not silos:
        return 0
    return len(silos) - max(map(len, _units(tuple(silos), seed, size)))


def drawn_from(job: JobParameters) -> tuple[str, ...]:
    """Return the silos that rounds are drawn from.

    Raises
    ------
    InvalidJob
        The job does not name its silos: then the coordinator would choose what is drawn from.
    """
    if not job.silos:
        raise InvalidJob(
            "[histogram] silos_per_round: expected the job to name its silos, from which those of "
            "a round are drawn; received no 'silos'"
        )
    return job.silos


@lru_cache(maxsize=4)
def cohorts(
    silos: tuple[str, ...], count: int, seed: int, rounds: int, first: int = 0, size: int = 3
) -> tuple[Cohort, ...]:
    """Return the cohorts of all rounds, the first of which is drawn as that of round ``first``."""
    return tuple(cohort(silos, count, seed, first + r, size) for r in range(rounds))


def n_close(silos: Sequence[str], drawn: Sequence[Cohort], seed: int, size: int) -> int:
    """Return how many sets of silos the cohorts have that are close to those before them.

    Before the first round sums are over all silos.
    """
    groups = groups_of(tuple(silos), seed, size)
    opened = OpenedSets(groups)
    for one in (tuple(sorted(map(Silo, silos))), *drawn):
        opened.note(one)
    return opened.n_close()
