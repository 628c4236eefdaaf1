"""A privacy budget that cannot be overdrawn: what each query costs, added up exactly.

Composition is basic: mechanisms are epsilon-differentially private each (delta is 0), and together
they are private by the sum of their epsilons. It holds for all mechanisms, also where the next
query is chosen by the answers so far.

References
----------
Dwork, Roth, The Algorithmic Foundations of Differential Privacy (2014), theorems 3.16 and 3.14.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from hedgerow.boosting.errors import FederationError

NOT_REPEATABLE = (
    "noise comes from a secret of each silo: the same seed repeats all else, so this run cannot be "
    "repeated exactly"
)
"""What a plan, and so the report, says of a job with noise."""


class BudgetExceeded(FederationError):
    """A query costs more than the rest of the privacy budget."""


@dataclass(frozen=True, slots=True)
class Spending:
    """One query and what it cost."""

    query: str
    """What is asked, in words."""
    epsilon: float
    sensitivity: int
    """Largest change of the answer by one row, summed over its values."""
    values: int
    """Number of values in the answer."""
    coordinator_only: bool = False
    """Whether the epsilon does not hold against a silo of the sum, who knows a part of the
    noise."""


class Accountant(Protocol):
    """Accounts for what the queries of one job cost the rows of a silo's table."""

    def charge(self, entries: Mapping[str, Spending]) -> None:
        """Enter queries by key, all or none; they are durable when this returns.

        A key that was entered before costs nothing: a repeated query has the same noise.

        Raises
        ------
        BudgetExceeded
            They cost more than is left.
        """
        ...


@dataclass(slots=True)
class BudgetLedger:
    """Queries of the same rows, by key; their budgets add up to at most ``epsilon``, exactly.

    Queries of disjoint rows that are asked together are one entry (parallel composition). A key
    that is entered again costs nothing: a repeated query must have the same noise.
    """

    epsilon: float
    """Positive, may be infinite."""
    entries: dict[str, Spending] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.epsilon > 0.0:
            raise ValueError(f"expected a positive epsilon, received {self.epsilon:g}")

    @property
    def spent(self) -> Fraction | float:
        """The sum of all budgets, exactly; infinite where one is."""
        return total(self.entries.values())

    def charge(self, entries: Mapping[str, Spending]) -> None:
        """Enter queries by key, all or none; see :class:`Accountant`."""
        fresh = {key: entry for key, entry in entries.items() if key not in self.entries}
        spent = self.spent
        for spending in fresh.values():
            if not spending.epsilon > 0.0:
                raise BudgetExceeded(
                    f"{spending.query}: expected a positive cost, received {spending.epsilon:g}"
                )
            before, spent = spent, spent + exact(spending.epsilon)
            if spent > self.epsilon:
                raise BudgetExceeded(
                    f"{spending.query} costs {spending.epsilon:g}, "
                    f"{float(self.epsilon - before):g} of {self.epsilon:g} are left"
                )
        self.entries.update(fresh)

    def document(self) -> dict[str, object]:
        """Return the ledger as plain values; infinity is written ``"inf"``."""
        return {
            "epsilon": plain(self.epsilon),
            "spent": plain(float(self.spent)),
            "queries": [
                {
                    "key": key,
                    "query": entry.query,
                    "epsilon": plain(entry.epsilon),
                    "sensitivity": entry.sensitivity,
                    "values": entry.values,
                    **({"coordinator_only": True} if entry.coordinator_only else {}),
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
        return cls.of_document(json.loads(data))

    @classmethod
    def of_document(cls, document: dict[str, Any]) -> BudgetLedger:
        """Return the ledger of :meth:`document`."""
        entries = {
            entry["key"]: Spending(
                entry["query"],
                float(entry["epsilon"]),
                entry["sensitivity"],
                entry["values"],
                bool(entry.get("coordinator_only", False)),
            )
            for entry in document["queries"]
        }
        return cls(float(document["epsilon"]), entries)


def plain(number: float) -> float | str:
    """Return a budget as JSON has it."""
    return "inf" if math.isinf(number) else number


def exact(epsilon: float) -> Fraction | float:
    """Return a budget as a number that adds up without rounding; infinity stays."""
    return epsilon if math.isinf(epsilon) else Fraction(epsilon)


def total(entries: Iterable[Spending]) -> Fraction | float:
    """Return what queries cost together, exactly; infinite where one has no noise."""
    return sum((exact(entry.epsilon) for entry in entries), Fraction(0))


def portion(epsilon: float, share: Fraction) -> float:
    """Return the largest float that is at most ``share`` of a budget, so that portions add up."""
    if math.isinf(epsilon):
        return math.inf
    exact = Fraction(epsilon) * share
    rounded = float(exact)
    return rounded if Fraction(rounded) <= exact else math.nextafter(rounded, 0.0)
