"""Which silos a round's sums are over, where a job draws them.

A cohort follows from the signed job alone: its seed, its list of silos and the round, counted from
the first round of the model that it goes on from. Every party computes it, so that nobody chooses
it and no loss changes it. Sums over sets that change from round
to round can be subtracted from each other, and in time combined until one silo is left. So six
silos and more are dealt into fixed groups of three to five that take part together: whatever is
added and subtracted, nothing finer than a group comes out while no silo is lost.

References
----------
So et al., Securing secure aggregation: mitigating multi-round privacy leakage in federated
learning, AAAI 2023 (batch partitioning).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.sums.view import state_digest
from hedgerow.crypto.vault import LEAST_SILOS

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

Cohort = tuple[Silo, ...]


def cohort(silos: Sequence[str], count: int, seed: int, round_: int) -> Cohort:
    """Return the silos of a round, sorted.

    Parameters
    ----------
    silos : sequence of str
        All silos that the job names, sorted.
    count : int
        How many a round has at least; 0 for all.
    seed : int
        Of the job.
    """
    groups = _groups(tuple(silos), seed)
    order = sorted(
        range(len(groups)), key=lambda g: state_digest("hedgerow cohort v1", seed, round_, g)
    )
    drawn: list[Silo] = []
    for group in order:
        if drawn and (len(drawn) >= count > 0):
            break
        drawn += groups[group]
    return tuple(sorted(drawn))


@lru_cache(maxsize=16)
def _groups(silos: tuple[str, ...], seed: int) -> tuple[Cohort, ...]:
    """Deal silos into groups of at least three, as even as can be; fewer than six one by one."""
    dealt = sorted(
        map(Silo, silos), key=lambda silo: state_digest("hedgerow cohort groups v1", seed, silo)
    )
    n_groups = n_groups_of(len(silos))
    return tuple(tuple(dealt[g::n_groups]) for g in range(n_groups))


def n_groups_of(n_silos: int) -> int:
    """Return in how many groups silos are drawn."""
    return n_silos // LEAST_SILOS if n_silos >= 2 * LEAST_SILOS else n_silos


def most_drawn(n_silos: int) -> int:
    """Return the largest number to draw that always leaves a group out; 0 where none does."""
    return n_silos - -(-n_silos // n_groups_of(n_silos)) if n_silos else 0


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
    silos: tuple[str, ...], count: int, seed: int, rounds: int, first: int = 0
) -> tuple[Cohort, ...]:
    """Return the cohorts of all rounds, the first of which is drawn as that of round ``first``."""
    return tuple(cohort(silos, count, seed, first + r) for r in range(rounds))


def n_close(silos: Sequence[str], drawn: Sequence[Cohort]) -> int:
    """Return how many cohorts differ by one or two silos from the one before.

    Before the first round sums are over all silos.
    """
    return sum(0 < len(set(a) ^ set(b)) < LEAST_SILOS for a, b in pairwise([silos, *drawn]))
