"""What each cell of the fault matrix did, as rows and as the table of docs/reliability.md."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault in one phase of a job.

    ``recovery_seconds`` is from the end of the fault to the next finished round, or to the job's
    end where there was none; for a fault that lasts as long as the job, the time that the job took.
    """

    fault: str
    service: str
    phase: str
    outcome: str
    attempts: int
    rounds: int
    recovery_seconds: float


class Matrix:
    """Collects cells."""

    def __init__(self) -> None:
        self._cells: list[Cell] = []

    def add(self, cell: Cell) -> None:
        self._cells.append(cell)

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(cell) for cell in self._cells]

    def table(self) -> str:
        lines = ["| fault | service | phase | outcome | attempts | rounds | recovery, s |"]
        lines.append("|---|---|---|---|---|---|---|")
        for c in self._cells:
            lines.append(
                f"| {c.fault} | {c.service} | {c.phase} | {c.outcome} | {c.attempts} | {c.rounds} "
                f"| {c.recovery_seconds:.1f} |"
            )
        return "\n".join(lines) + "\n"
