"""A privacy budget that cannot be overdrawn, and noise that a restart does not draw twice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import FederationError
from hedgerow.crypto.key_agreement import encode_fields, expand, extract
from hedgerow.crypto.keystream import keystream
from hedgerow.crypto.noise import discrete_laplace_part


class BudgetExceeded(FederationError):
    """A query costs more than the rest of the privacy budget."""


@dataclass(frozen=True, slots=True)
class Spending:
    """One query and what it cost.

    Parameters
    ----------
    query : str
        What is asked, in words.
    epsilon : float
    sensitivity : int
        Largest change of the answer by one row, summed over its values.
    values : int
        Number of values in the answer.
    """

    query: str
    epsilon: float
    sensitivity: int
    values: int


@dataclass(slots=True)
class BudgetLedger:
    """Queries of the same rows, by key; their budgets add up to at most ``epsilon``, exactly.

    Queries of disjoint rows that are asked together are one entry (parallel composition). A key
    that is entered again costs nothing: whoever repeats a query must repeat its noise.

    Parameters
    ----------
    epsilon : float
        Positive, may be infinite.
    """

    epsilon: float
    entries: dict[str, Spending] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.epsilon > 0.0:
            raise ValueError(f"expected a positive epsilon, received {self.epsilon:g}")

    @property
    def spent(self) -> Fraction:
        """The sum of all budgets, exactly; 0 when the budget is infinite."""
        if math.isinf(self.epsilon):
            return Fraction(0)
        return sum((Fraction(entry.epsilon) for entry in self.entries.values()), Fraction(0))

    def spend(self, key: str, spending: Spending) -> None:
        """Enter a query.

        Raises
        ------
        BudgetExceeded
            It costs more than is left; nothing is entered then.
        """
        if key in self.entries:
            return
        if not math.isinf(self.epsilon):
            if not 0.0 < spending.epsilon < math.inf:
                raise BudgetExceeded(
                    f"{spending.query}: expected a positive, finite cost, received "
                    f"{spending.epsilon:g}"
                )
            left = Fraction(self.epsilon) - self.spent
            if Fraction(spending.epsilon) > left:
                raise BudgetExceeded(
                    f"{spending.query} costs {spending.epsilon:g}, "
                    f"{float(left):g} of {self.epsilon:g} are left"
                )
        self.entries[key] = spending

    def document(self) -> dict[str, object]:
        """Return the ledger as plain values; infinity is written ``"inf"``."""

        def plain(number: float) -> float | str:
            return "inf" if math.isinf(number) else number

        return {
            "epsilon": plain(self.epsilon),
            "spent": float(self.spent) if not math.isinf(self.epsilon) else "inf",
            "queries": [
                {
                    "key": key,
                    "query": entry.query,
                    "epsilon": plain(entry.epsilon),
                    "sensitivity": entry.sensitivity,
                    "values": entry.values,
                }
                for key, entry in self.entries.items()
            ],
        }

    def encode(self) -> bytes:
        """Return the ledger as JSON."""
        return json.dumps(self.document(), indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> BudgetLedger:
        """Return the ledger of :meth:`encode`."""
        document = json.loads(data)
        entries = {
            entry["key"]: Spending(
                entry["query"], float(entry["epsilon"]), entry["sensitivity"], entry["values"]
            )
            for entry in document["queries"]
        }
        return cls(float(document["epsilon"]), entries)


def portion(epsilon: float, share: Fraction) -> float:
    """Return the largest float that is at most ``share`` of a budget, so that portions add up."""
    if math.isinf(epsilon):
        return math.inf
    exact = Fraction(epsilon) * share
    rounded = float(exact)
    return rounded if Fraction(rounded) <= exact else math.nextafter(rounded, 0.0)


def replayable(secret: bytes, context: bytes) -> Callable[[int], bytes]:
    """Return a cryptographic generator that gives the same bytes for the same context.

    A query that is repeated after a restart has the same noise, so that answers cannot be
    averaged; another query has independent noise (HKDF, AES-256 as a pseudo-random function).

    Parameters
    ----------
    secret : bytes
        At least 32 random bytes that never leave the silo.
    context : bytes
        Identifies the query and all that its answer depends on.
    """
    root = extract(context, secret)
    calls = 0

    def draw(n_bytes: int) -> bytes:
        nonlocal calls
        calls += 1
        return keystream(expand(root, encode_fields("dp noise", calls)), n_bytes)

    return draw


def noisy(
    counts: NDArray[np.int64],
    epsilon: float,
    *,
    sensitivity: int,
    honest: int,
    entropy: Callable[[int], bytes],
) -> NDArray[np.int64]:
    """Return counts with one silo's part of discrete Laplace noise; see :mod:`crypto.noise`.

    Parameters
    ----------
    counts : ndarray of any shape, int64
    epsilon : float
        Budget of the whole query; infinite adds nothing.
    sensitivity : int
        Number of the counts that one row may change, by one each.
    honest : int
        Silos whose parts make up the whole noise.
    """
    if math.isinf(epsilon):
        return counts
    noise = discrete_laplace_part(
        counts.size, epsilon, sensitivity=sensitivity, honest=honest, entropy=entropy
    )
    return counts + noise.reshape(counts.shape)
