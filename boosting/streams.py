"""Every random stream of a job: a repeated round repeats its draws, and so gives the same trees.

What all parties draw alike (columns, silos of a round, hash functions) follows from the job's seed.
What a silo draws over its own rows follows from a secret that its vault keeps, in a simulation from
the seed: with draws that a coordinator knows, sums of many rounds are equations in single rows.
"""

from __future__ import annotations

from dataclasses import fields
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from hedgerow.boosting.draws import OwnDraws
from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.sums.view import state_digest
from hedgerow.crypto.errors import Refusal
from hedgerow.crypto.masking.key_agreement import encode_fields, expand

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.crypto.vault.interface import Vault


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
    STRUCTURES = 600  # features and thresholds of trees that no row decides


def round_drawn(job: JobParameters, round: int) -> int:
    """Return the round that a job draws for in one of its own, which go on from an earlier model.

    The signed job says how many rounds that model has, so that nobody chooses what is drawn.
    """
    return round + (job.warm_start.rounds_before if job.warm_start is not None else 0)


def own_draws(vault: Vault, job: JobParameters, table: str) -> OwnDraws:
    """Return a silo's draws over its own rows, from a secret that all its jobs share.

    The same table, seed and parameters have the same draws: in every attempt, and in a job that
    goes on from the model of another, whose rows held back stay so even with other parameters.
    Any other share, sampling, label or table has draws that have nothing to do with these: two
    samples that are nearly equal would differ by single rows.

    Parameters
    ----------
    table : str
        Digest of the silo's table.

    Raises
    ------
    FederationError
        The vault refuses.
    """
    told = job.parameters
    share = getattr(told, "validation", None)
    names = {f.name for f in fields(told)} - {"rounds"}  # type: ignore[arg-type]
    parameters = {name: getattr(told, name) for name in names}
    columns = job.columns
    weights = (columns.weight, columns.class_weight) if columns.weighs else ()
    missing = () if columns.missing is None else (columns.missing,)
    asked = state_digest(told.name, parameters, job.booster, job.features, *weights, *missing)
    try:
        rows = (table, job.label, job.columns.missing_label, *job.columns.of_label)
        root = vault.derive_noise(state_digest("hedgerow draws v1", job.seed, share, *rows))
    except Refusal as error:
        raise FederationError(f"the silo's vault gives no draws: {error}") from error
    return OwnDraws(
        expand(root.seed, encode_fields("split")), expand(root.seed, encode_fields(asked))
    )


_SPLITS = {Purpose.SPLIT, Purpose.VALIDATION, Purpose.NETWORK_SPLIT}
Seed = int | OwnDraws
"""A job's seed, or a silo's own draws."""


def sequence(seed: Seed, silo: int, round: int, purpose: Purpose) -> np.random.SeedSequence:
    """Return the stream of a purpose in one round.

    ``silo``, its place in the roster, tells silos apart where draws follow from the job's seed.
    """
    if isinstance(seed, OwnDraws):
        own = seed.entropy(round, int(purpose), split=purpose in _SPLITS)
        return np.random.SeedSequence(own)
    return np.random.SeedSequence([seed, silo, round, purpose])


def generator(seed: Seed, silo: int, round: int, purpose: Purpose) -> np.random.Generator:
    """Return the generator of :func:`sequence`."""
    return np.random.default_rng(sequence(seed, silo, round, purpose))


def xgboost_seed(seed: Seed, silo: int, round: int, purpose: Purpose) -> int:
    """Return a seed of :func:`sequence` that XGBoost takes, in [0, 2**31)."""
    return int(sequence(seed, silo, round, purpose).generate_state(1)[0]) & 0x7FFFFFFF
