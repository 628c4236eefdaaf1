"""How soon seeds find a fault that is put back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation import operations
from tests.simulation.faults import FAULTS
from tests.simulation.operations import Plan
from tests.simulation.running import Result, Undisturbed
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


def search(name: str, first: int, most: int, n_jobs: int, undisturbed: Undisturbed) -> Found:
    """Run seeds with a fault until one finds it, so many at most."""
    fault = FAULTS[name]
    n_seeds = n_operations = 0
    failed: list[Result] = []
    with fault.put_back():
        plans = _plans(first, most, failed)
        for result in side_by_side(plans, n_jobs, whole=False):
            undisturbed.check(result)
            if not failed:
                n_seeds, n_operations = n_seeds + 1, n_operations + result.n_operations
            if result.violations:
                failed.append(result)
        if not failed:
            return Found(name, None, n_seeds, n_operations, 0, None, "")
        plan = operations.draw(failed[0].seed)
        fails = checker(undisturbed)
        needed = plan.of(range(failed[0].n_done))  # what comes later is not
        small = operations.shrink(needed if fails(needed) else plan, fails, tries=3)
    said = failed[0].violations[0]
    return Found(name, failed[0].seed, n_seeds, n_operations, len(small.operations), small, said)


def _plans(first: int, most: int, failed: list[Result]) -> Iterator[Plan]:
    for seed in range(first, first + most):
        if failed:
            return
        yield operations.draw(seed)
