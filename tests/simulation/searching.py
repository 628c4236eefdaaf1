"""How soon seeds find a fault that is put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from tests.simulation import operations
from tests.simulation.faults import FAULTS
from tests.simulation.operations import Plan
from tests.simulation.running import REAL, Result, Undisturbed
from tests.simulation.seeds import checker, side_by_side


@dataclass(frozen=True)
class Found:
    """What it took to find a fault."""

    fault: str
    seed: int | None
    n_seeds: int
    n_operations: int
    n_needed: int
    """Operations that are left when all others are dropped."""
    plan: Plan | None
    said: str

    def __str__(self) -> str:
        if self.seed is None:
            return f"| {self.fault} | not found | {self.n_seeds} | {self.n_operations} | | |"
        return (
            f"| {self.fault} | {self.said[:100]} | {self.n_seeds} | {self.n_operations} | "
            f"{self.n_needed} | `{self.plan and self.plan.line}` |"
        )


def search(name: str, first: int, seconds: float, n_jobs: int, undisturbed: Undisturbed) -> Found:
    """Run fresh seeds with a fault until one finds it, for so long at most."""
    fault, end = FAULTS[name], REAL() + seconds
    n_seeds = n_operations = 0
    failed: list[Result] = []
    with fault.put_back():
        for result in side_by_side(_plans(first, lambda: failed or REAL() > end), n_jobs):
            undisturbed.check(result)
            if not failed:
                n_seeds, n_operations = n_seeds + 1, n_operations + result.n_operations
            if any(fault.says in what for what in result.violations):
                failed.append(result)
        if not failed:
            return Found(name, None, n_seeds, n_operations, 0, None, "")
        said = next(what for what in failed[0].violations if fault.says in what)
        plan = operations.draw(failed[0].seed)
        small = operations.shrink(plan, checker(undisturbed), tries=8)
    return Found(name, failed[0].seed, n_seeds, n_operations, len(small.operations), small, said)


def _plans(first: int, over: Callable[[], object]) -> Iterator[Plan]:
    for seed in count(first):
        if over():
            return
        yield operations.draw(seed)
