"""Every random stream of a job: a function of its seed, a silo, a round and a purpose.

A repeated round repeats its draws, so that it gives the same trees.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters


class Purpose(IntEnum):
    """What a stream is drawn for.

    Strategies that never run in one job share the numbers 0 to 3: models of earlier versions are
    repeated to the byte.
    """

    XGBOOST = 0  # XGBoost's own seed in a silo
    SAMPLING = 0  # rows of a tree
    SPLIT = 1  # validation rows of bagging
    COLUMNS = 1  # features of a tree
    PARTICIPANTS = 2  # silos of a round of bagging
    ROUNDING = 2  # stochastic rounding of gradients
    VALIDATION = 3  # validation rows of histogram boosting
    VERTICAL_VALIDATION = 7  # validation rows of vertical boosting
    SILO_TREES = 300
    NETWORK_SPLIT = 301
    NETWORK_TRAINING = 302
    NETWORK_ROUNDING = 303
    NETWORK_START = 304
    FOLDS = 401  # FedGA: cross-validation
    FITTING_ROWS = 402  # FedGA: rows that score instead of fit
    ASKED_SILOS = 403
    BREEDING = 404
    HASHING = 500  # SimFL: hash functions of a job
    SIMILAR_ROWS = 501  # SimFL: which of several rows that are equally similar


def round_drawn(job: JobParameters, round: int) -> int:
    """Return the round that a job draws for in one of its own, which go on from an earlier model.

    The signed job says how many rounds that model has, so that nobody chooses what is drawn.
    """
    return round + (job.warm_start.rounds_before if job.warm_start is not None else 0)


def sequence(seed: int, silo: int, round: int, purpose: Purpose) -> np.random.SeedSequence:
    """Return the stream of a purpose of one silo (its place in the roster) in one round."""
    return np.random.SeedSequence([seed, silo, round, purpose])


def generator(seed: int, silo: int, round: int, purpose: Purpose) -> np.random.Generator:
    """Return the generator of :func:`sequence`."""
    return np.random.default_rng(sequence(seed, silo, round, purpose))


def xgboost_seed(seed: int, silo: int, round: int, purpose: Purpose) -> int:
    """Return a seed of :func:`sequence` that XGBoost takes, in [0, 2**31)."""
    return int(sequence(seed, silo, round, purpose).generate_state(1)[0]) & 0x7FFFFFFF
