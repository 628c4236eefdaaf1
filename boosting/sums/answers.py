"""Counts of a silo's rows with noise: charged before they exist, the same when asked again.

Noise is a function of the silo's secret, which its vault keeps, and of everything that the answer
is computed from: job, agreed schema, table, query, costs, and the silos whose sum it enters. The
same question has the same noise, so that answers cannot be averaged, and costs nothing again; any
change gives independent noise, and a new charge.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.budget import Accountant, Concentrated, Spending
from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import SiloStart
from hedgerow.boosting.sums.view import state_digest
from hedgerow.crypto.errors import Refusal
from hedgerow.crypto.masking.key_agreement import encode_fields, expand
from hedgerow.crypto.masking.keystream import keystream
from hedgerow.crypto.masking.noise import discrete_laplace_part, skellam_part

if TYPE_CHECKING:
    from hedgerow.crypto.vault.interface import Vault

Counts = NDArray[np.int64]
NoisyPart = tuple[Spending, Counts]
"""Counts, and what it costs to release them."""


class NoisyRelease:
    """A silo's answers under differential privacy, for one attempt of a job.

    Parameters
    ----------
    vault : Vault
        Derives the noise.
    accountant : Accountant
        The job's, of the silo's table.
    start : SiloStart
        What all answers depend on: job, schema and table.
    """

    def __init__(self, vault: Vault, accountant: Accountant, start: SiloStart) -> None:
        self._vault = vault
        self._accountant = accountant
        table = start.dataset
        labels = None if table.y is None else table.labels
        self._state = state_digest(
            "hedgerow noise v1", start.job_id, start.job_digest, start.job, start.silo,
            start.schema, table.schema, *map(_content, (table.X, labels, table.weight)),
        )  # fmt: skip

    @classmethod
    def of(cls, vault: Vault | None, start: SiloStart) -> NoisyRelease:
        """Return the answers of a silo that has both of what noise needs."""
        if vault is None or start.accountant is None:
            raise ValueError("noise needs a vault and an accountant")
        return cls(vault, start.accountant, start)

    def answer(
        self, query: bytes, parts: Sequence[NoisyPart], *, silos: tuple[Silo, ...], honest: int
    ) -> list[Counts]:
        """Return counts with this silo's part of the noise, once they are paid for.

        Parameters
        ----------
        parts : sequence
            Each with noise of its own; an infinite budget adds none.
        silos : tuple of Silo
            The sum that the counts enter is over these; empty where it is no sum.
        honest : int
            Silos whose parts make up the whole noise.

        Raises
        ------
        BudgetExceeded
            They cost more than is left; nothing is entered then.
        """
        costs = tuple(spending for spending, _ in parts)
        context = state_digest(self._state, query, costs, silos, honest)
        try:
            seed = self._vault.derive_noise(context)
        except Refusal as error:
            raise FederationError(f"the silo's vault gives no noise: {error}") from error
        # Another key is other noise: the same question is then another release.
        paid = state_digest(context, seed.key_id).hex()
        self._accountant.charge({f"{paid}/{k}": cost for k, cost in enumerate(costs)})
        return [
            noisy(counts, spending, honest=honest, entropy=stream(seed.seed, number))
            for number, (spending, counts) in enumerate(parts)
        ]


def _content(values: NDArray[np.generic] | None) -> tuple[object, ...]:
    """Return an array's shape and SHA-256; a table is too large to encode whole."""
    if values is None:
        return ()
    return (values.shape, hashlib.sha256(np.ascontiguousarray(values).data).digest())


def stream(seed: bytes, number: int) -> Callable[[int], bytes]:
    """Return a cryptographic generator that gives the same bytes for the same seed and number.

    HKDF, and AES-256 as a pseudo-random function: noise is as private as these are hard to tell
    from random.
    """
    calls = 0

    def draw(n_bytes: int) -> bytes:
        nonlocal calls
        calls += 1
        return keystream(expand(seed, encode_fields("dp noise", number, calls)), n_bytes)

    return draw


def noisy(
    counts: Counts, spending: Spending, *, honest: int, entropy: Callable[[int], bytes]
) -> Counts:
    """Return counts with one silo's part of the noise of a query; see :mod:`crypto.masking.noise`.

    It is Skellam noise where the query costs a ``rho``, else discrete Laplace noise.

    Parameters
    ----------
    counts : ndarray of any shape, int64
    spending : Spending
        Budget of the whole query, and number of the counts that one row may change, by one each.
    honest : int
        Silos whose parts make up the whole noise.
    """
    if isinstance(spending, Concentrated):
        part = skellam_part(counts.size, spending.variance, honest=honest, entropy=entropy)
        return counts + part.reshape(counts.shape)
    if math.isinf(spending.epsilon):
        return counts
    noise = discrete_laplace_part(
        counts.size, spending.epsilon, sensitivity=spending.sensitivity, honest=honest,
        entropy=entropy,
    )  # fmt: skip
    return counts + noise.reshape(counts.shape)
