"""What a job may ask of a silo, counted by the silo itself while the job runs.

A coordinator that lies asks for more than the job says: more rounds, deeper trees, one more vector.
Each strategy lists from the signed job where each of its steps may happen; :class:`QuotaChannel`
lets nothing else leave, and no class of offer that the silo's policy does not allow. It is the one
place for both: a strategy cannot go around it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from hedgerow.boosting.errors import PolicyDeclined
from hedgerow.boosting.exchange import Discloses, ExchangeKey, Offer, Reply, SiloChannel, Step
from hedgerow.boosting.job import Booster

UNBOUNDED = 1 << 62
"""Where a job sets no limit."""
LARGE_EPSILON = 10.0
"""A larger one promises so little that it counts as none, and a job must say why it is taken."""

HIDING_EPSILON = 2.0
"""A larger one lets two jobs around one row tell it often enough that no rule may rely on noise."""

EVERY_CLASS = frozenset(Discloses)
"""What a silo without any policy would send."""
UNLESS_SAID = frozenset({Discloses.QUANTILES, Discloses.COUNTS, Discloses.HASHES, Discloses.SCORES})
"""What leaves only where the silo's policy names it."""
IN_CLEAR = frozenset(
    {Discloses.TREES, Discloses.QUANTILES, Discloses.COUNTS, Discloses.WEIGHTS, Discloses.HASHES}
)  # fmt: skip
"""What nobody sends under ``require_secure``."""

COLUMNS = "columns"
"""What jobs divide into bins; everything else that they divide are labels, by their column."""

_ONCE = frozenset({Discloses.MASKED, Discloses.NOISED, Discloses.COUNTS})
"""Parts of sums: a second vector at a place would be a second sum of other rows or other nodes."""

REPEATS = 64
"""How often a silo synchronises, or offers the same, at one place: it is not kept busy for ever."""


@dataclass(frozen=True, slots=True)
class PrivacyProperties:
    """What a job's parameters mean for the rules of a silo's own policy."""

    deepest: int
    """Most levels of a tree; 0 is no limit."""
    epsilon: float | None = None
    """Differential privacy's budget, where the strategy has one."""
    private: bool = False
    """Whether a finite budget covers all that leaves, and only sums leave."""
    bins: int = 0
    """Most bins of a feature; 0 where there are none."""
    cell_rows: int | None = None
    """Rows of all silos between two cut points of a search on counts, at least; ``None`` where
    there is none."""
    leaf_rows: int | None = 1
    """Rows, of weight one, that the job's parameters leave in a leaf at least; ``None`` where noise
    covers small leaves."""
    key_bits: int | None = None
    """Of the Paillier modulus; 0 where the job leaves out the encryption, ``None`` where the
    strategy has no such key."""
    classes: int = 0
    trees: int = 0
    """``classes`` and ``trees``: of a vertical job: classes of the label, and trees in all; 0 where
    it trains nothing."""
    gradient_bits: int = 0
    """Of a vertical job: bits of an encrypted gradient, as far as the job says."""
    filled_bins: bool = False
    """Whether silos learn which bins of a node some silo has rows in."""
    drawn_silos: int = 0
    """Fewest silos that are drawn for a round; 0 where all take part in all rounds."""
    close_sums: int = 0
    """Sets of silos that the job draws and that tell fewer than three silos apart."""
    torch: str = ""
    """What of the job trains with PyTorch in the silos, for people; empty where nothing does."""
    tells_counts: bool = False
    """Whether coordinator and operator read counts of rows of all silos, by bin and category."""
    binnings: tuple[tuple[str, str], ...] = ()
    """What is divided into bins or cells of rows' values, and how: two jobs that divide the same in
    two ways tell of the rows between two near values, which may be few."""
    delta: float = 0.0
    """At which the budget is that epsilon; 0 for pure differential privacy."""

    @property
    def hides_rows(self) -> bool:
        """Whether noise hides a row in all that leaves, so that rules about few rows need not."""
        return self.private and self.epsilon is not None and self.epsilon <= HIDING_EPSILON


@dataclass(frozen=True, slots=True)
class PartyLimits:
    """What a silo's policy holds the parties of a vertical job to."""

    least_ids: int = 1
    most_ids: int = 20_000_000
    """``least_ids`` and ``most_ids``: distinct row ids of any party."""
    least_bin_rows: int = 1
    """Rows that any two sums over the bins of a column differ by."""
    most_gradient_bits: int = 0
    """Of an encrypted gradient; 0 for any number."""
    most_ids_ratio: float = math.inf
    """Distinct row ids of another party, in multiples of the own ones."""
    most_common: float = 1.0
    """Share of the own row ids that may be common with a party that has many more."""
    tells_scores: bool = True
    """Whether the active party tells the coordinator each round's scores."""


@dataclass(frozen=True, slots=True)
class StepQuota:
    """Where one kind of offer may be asked for: what the job's own parameters need."""

    step: Step[Any, Any]
    places: int
    """Most distinct places in an attempt."""
    rounds: int = 1
    levels: int = 1
    """``rounds`` and ``levels``: a place's round and level are below these."""
    streamed: bool = False
    """Whether the passes of a place are pieces of one offer, which are not counted."""


def most_levels(booster: Booster, deepest: int, most_nodes: int = 0) -> int:
    """Return how many sums of histograms a tree takes at most; without a limit, no limit.

    Parameters
    ----------
    deepest : int
        Levels at most, 0 for any.
    most_nodes : int
        Nodes of a level that are summed at a time, one of each pair; 0 for all.
    """
    most = booster.max_leaves - 1 if booster.max_leaves else UNBOUNDED
    if deepest:
        loss_guided = booster.grow_policy == "lossguide"
        deepest = min(deepest, 61)
        levels = (-(-(1 << level) // (most_nodes or 1 << level)) for level in range(deepest - 1))
        most = min(most, (1 << deepest) - 1 if loss_guided else 1 + sum(levels))
    return max(1, most)


def disclosed(allowances: Iterable[StepQuota]) -> dict[Discloses, str]:
    """Return the classes that a job discloses, each with a step that does."""
    found: dict[Discloses, str] = {}
    for allowance in allowances:
        if allowance.places:
            found.setdefault(allowance.step.discloses, allowance.step.name)
    return found


class QuotaChannel:
    """A silo's link that sends what its policy and the signed job allow, and nothing else.

    Parameters
    ----------
    allowances : iterable of StepQuota
        One for each step that the job may take.
    may_send : collection of Discloses
        Classes that the silo's policy allows.
    """

    def __init__(
        self,
        link: SiloChannel,
        allowances: Iterable[StepQuota],
        may_send: Collection[Discloses] = EVERY_CLASS,
    ) -> None:
        self._link = link
        self._allowances = {allowance.step.name: allowance for allowance in allowances}
        self._may_send = may_send
        self._places: dict[str, Counter[ExchangeKey]] = {}

    def exchange(self, step: Step[Offer, Reply], at: ExchangeKey, offer: Offer) -> Reply:
        """Count an exchange, and make it.

        Raises
        ------
        PolicyDeclined
            The policy does not allow the class, or the job does not need the exchange.
        """
        if step.discloses not in self._may_send:
            raise PolicyDeclined(
                f"policy rule may_send: step {step.name!r} would send {step.discloses.value}"
            )
        self._count(step, at)
        return self._link.exchange(step, at, offer)

    def _count(self, step: Step[Any, Any], at: ExchangeKey) -> None:
        allowed = self._allowances.get(step.name)
        if allowed is None:
            raise _beyond(step, at, "which the job does not take")
        if not 0 <= at.round < allowed.rounds:
            raise _beyond(step, at, f"the job ends after {allowed.rounds} rounds of it")
        if not 0 <= at.level < allowed.levels:
            raise _beyond(step, at, f"the job ends after {allowed.levels} levels of it")
        place = ExchangeKey(at.round, at.level) if allowed.streamed else at
        places = self._places.setdefault(step.name, Counter())
        if places[place] and not allowed.streamed:
            if step.discloses in _ONCE or places[place] >= REPEATS:
                raise _beyond(step, at, "where it was made before")
        elif not places[place] and len(places) >= allowed.places:
            raise _beyond(step, at, f"the job needs {allowed.places} of it")
        places[place] += 1

    def check(self) -> None:
        """Raise :class:`JobStopped` when this silo is to stop."""
        self._link.check()

    def remember(self, key: str, value: bytes) -> None:
        """Make a record durable before the next exchange."""
        self._link.remember(key, value)

    def recall(self, key: str) -> bytes | None:
        """Return what was remembered for this job, or ``None``."""
        return self._link.recall(key)


def _beyond(step: Step[Any, Any], at: ExchangeKey, why: str) -> PolicyDeclined:
    return PolicyDeclined(
        f"more was asked than the signed job needs: step {step.name!r} in round {at.round}, "
        f"level {at.level}, pass {at.passing}: {why}"
    )
