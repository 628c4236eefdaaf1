"""A privacy budget that cannot be overdrawn: what each query costs, added up exactly.

Composition of pure queries is basic: mechanisms are epsilon-differentially private each (delta is
0), and together they are private by the sum of their epsilons. It holds for all mechanisms, also
where the next query is chosen by the answers so far.

Queries with Skellam or Gaussian noise cost a ``rho``: the Renyi divergence of each integer order
``a`` from 2 on that one row makes is at most ``rho a``. These add up, too, and an epsilon follows
for any delta above 0. A pure query is one of ``rho = epsilon^2 / 2``; what all cost together is the
better of both sums.

References
----------
Dwork, Roth, The Algorithmic Foundations of Differential Privacy (2014), theorems 3.16 and 3.14.
Bun, Steinke, Concentrated differential privacy (2016), propositions 1.4 and 1.8.
Canonne, Kamath, Steinke, The discrete Gaussian for differential privacy (2020), proposition 12.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
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


@dataclass(frozen=True, slots=True)
class Concentrated(Spending):
    """One query with Skellam noise; its ``epsilon`` is 0, what it costs is ``rho``."""

    rho: float = 0.0
    variance: int = 0
    """Of the whole noise on each value."""


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
    delta: float = 0.0
    """At which :class:`Concentrated` queries have their epsilon; 0 has none for them."""

    def __post_init__(self) -> None:
        if not self.epsilon > 0.0:
            raise ValueError(f"expected a positive epsilon, received {self.epsilon:g}")

    @property
    def spent(self) -> Fraction | float:
        """The sum of all budgets, exactly; infinite where one is."""
        return total(self.entries.values(), self.delta)

    def charge(self, entries: Mapping[str, Spending]) -> None:
        """Enter queries by key, all or none; see :class:`Accountant`."""
        fresh = {key: entry for key, entry in entries.items() if key not in self.entries}
        together = dict(self.entries)
        spent = self.spent
        for key, spending in fresh.items():
            if not (cost_of(spending) > 0.0):
                raise BudgetExceeded(
                    f"{spending.query}: expected a positive cost, received {cost_of(spending):g}"
                )
            together[key] = spending
            before, spent = spent, total(together.values(), self.delta)
            if spent > self.epsilon:
                raise BudgetExceeded(
                    f"{spending.query} costs {float(spent - before):g}, "
                    f"{float(self.epsilon - before):g} of {self.epsilon:g} are left"
                )
        self.entries.update(fresh)

    def document(self) -> dict[str, object]:
        """Return the ledger as plain values; infinity is written ``"inf"``."""
        return {
            "epsilon": plain(self.epsilon),
            **({"delta": self.delta} if self.delta else {}),
            "spent": plain(float(self.spent)),
            "queries": [
                {
                    "key": key,
                    "query": entry.query,
                    "epsilon": plain(entry.epsilon),
                    "sensitivity": entry.sensitivity,
                    "values": entry.values,
                    **({"coordinator_only": True} if entry.coordinator_only else {}),
                    **(
                        {"rho": entry.rho, "variance": entry.variance}
                        if isinstance(entry, Concentrated)
                        else {}
                    ),
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
        entries = {entry["key"]: _entry(entry) for entry in document["queries"]}
        return cls(float(document["epsilon"]), entries, float(document.get("delta", 0.0)))


def _entry(told: dict[str, Any]) -> Spending:
    about = (
        told["query"],
        float(told["epsilon"]),
        told["sensitivity"],
        told["values"],
        bool(told.get("coordinator_only", False)),
    )
    if "rho" not in told:
        return Spending(*about)
    return Concentrated(*about, float(told["rho"]), int(told["variance"]))


def cost_of(spending: Spending) -> float:
    """Return a query's epsilon, or its rho."""
    return spending.rho if isinstance(spending, Concentrated) else spending.epsilon


def plain(number: float) -> float | str:
    """Return a budget as JSON has it."""
    return "inf" if math.isinf(number) else number


def exact(epsilon: float) -> Fraction | float:
    """Return a budget as a number that adds up without rounding; infinity stays."""
    return epsilon if math.isinf(epsilon) else Fraction(epsilon)


def total(entries: Iterable[Spending], delta: float = 0.0) -> Fraction | float:
    """Return what queries cost together: the epsilon at ``delta``, exactly for pure queries.

    Infinite where one has no noise, or a ``rho`` while delta is 0.
    """
    pure: Fraction | float = Fraction(0)
    rho, squares = Fraction(0), 0.0
    for entry in entries:
        if isinstance(entry, Concentrated):
            rho += Fraction(entry.rho)
        else:
            pure += exact(entry.epsilon)
            squares += entry.epsilon**2 / 2
    if not rho:
        return pure
    apart, together = epsilon_of(float(rho), delta), epsilon_of(float(rho) + squares, delta)
    return min(pure + exact(apart), exact(together))


def epsilon_of(rho: float, delta: float) -> float:
    """Return the epsilon at ``delta`` of mechanisms whose Renyi divergences are ``rho a``.

    Every order ``a`` gives a bound; integers around the best one are tried.
    """
    if not delta or math.isinf(rho):
        return math.inf
    best = 1.0 + math.sqrt(-math.log(delta) / rho)
    orders = {max(2, round(best * 2.0 ** (k / 32))) for k in range(-32, 9)}
    found: float = min(
        rho * a + math.log1p(-1.0 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in orders
    )
    return max(found, 0.0)


def against_silos(epsilon: float, n_parts: int, left: Callable[[int], float]) -> str:
    """Return in words how far epsilon holds against silos that know their parts of a sum's noise.

    Parameters
    ----------
    n_parts : int
        Silos of the sum.
    left : callable
        From the number of parts that nobody else knows to the epsilon.
    """
    known = [f"{left(n_parts - k):.3g}" for k in range(1, min(n_parts, 4))]
    more = "".join(f", {k} of them {other}" for k, other in enumerate(known[1:], 2))
    return (
        f"against the coordinator epsilon is {epsilon:g}, against a silo of the job "
        f"{known[0]}{more}: silos know their own parts of the noise of a sum over {n_parts}"
    )


def rho_within(epsilon: float, delta: float) -> float:
    """Return the largest ``rho``, to one part in 2**40, whose epsilon at ``delta`` is no larger."""
    low, high = 0.0, 1.0
    while epsilon_of(high, delta) <= epsilon:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if epsilon_of(middle, delta) <= epsilon else (low, middle)
        if high - low < low * 2.0**-40:
            break
    return low


def portion(epsilon: float, share: Fraction) -> float:
    """Return the largest float that is at most ``share`` of a budget, so that portions add up."""
    if math.isinf(epsilon):
        return math.inf
    exact = Fraction(epsilon) * share
    rounded = float(exact)
    return rounded if Fraction(rounded) <= exact else math.nextafter(rounded, 0.0)
