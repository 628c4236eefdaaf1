"""How many exchanges the sums of a job need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from hedgerow.boosting.allowances import StepQuota
from hedgerow.boosting.sums.floats import FloatSum
from hedgerow.boosting.sums.steps import KEYS, SumParameters, SumSteps

Offer = TypeVar("Offer")
Reply = TypeVar("Reply")


def has_sums(allowances: Iterable[StepQuota]) -> bool:
    """Return whether a job has secure sums."""
    return any(one.step is KEYS for one in allowances)


class SumAllowances:
    """Collects the allowances of a job's sums."""

    def __init__(self, parameters: SumParameters, n_silos: int) -> None:
        self._parameters = parameters
        self._n_silos = n_silos
        self.found: list[StepQuota] = []

    def setups(self, times: int, rounds: int = 1, levels: int = 1) -> None:
        """Allow agreements on keys, each at a round and level of its own."""
        if self._parameters.secure:
            self.found.append(StepQuota(KEYS, times, rounds, levels))

    def sums(self, steps: SumSteps[Reply], times: int, rounds: int = 1, levels: int = 1) -> None:
        """Allow `n` sums of a kind, at most ``levels`` levels in each of ``rounds`` rounds."""
        if not self._parameters.secure:
            self.found.append(StepQuota(steps.plain, times, rounds, levels))
            return
        each = (steps.shares, steps.single, steps.masked, steps.agree, steps.seeds, steps.unmask)
        for step in each:
            # An agreement is repeated for each silo that is lost meanwhile.
            repeats = self._n_silos + 1 if step in (steps.agree, steps.seeds) else 1
            self.found.append(StepQuota(step, times * repeats, rounds, levels))

    def float_sums(
        self,
        kind: FloatSum[Offer, Reply],
        times: int,
        rounds: int = 1,
        levels: int = 1,
        *,
        bounds: bool = True,
    ) -> None:
        """Allow `n` sums of floats, each after that of its bound."""
        if bounds:
            self.sums(kind.bound, times, rounds, levels)
        self.sums(kind.secure, times, rounds, levels)
