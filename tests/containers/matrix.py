"""What each cell of the fault matrix did, as rows and as the table of docs/reliability.md.

A whole ``make test-containers`` writes ``build/fault-matrix.json``;
``python -m tests.containers.matrix`` puts that run's table into docs/reliability.md.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "build/fault-matrix.json"
PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- fault matrix: begin -->\n", "<!-- fault matrix: end -->\n"


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
    """Collects the cells of one run, and the load of the machine at each."""

    def __init__(self) -> None:
        self._cells: list[Cell] = []
        self._loads: list[float] = []
        self._started = time.monotonic()

    def add(self, cell: Cell) -> None:
        self._cells.append(cell)
        self._loads.append(os.getloadavg()[0])

    def record(self) -> dict[str, Any]:
        """Return what the run found, as JSON has it."""
        return {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "minutes": round((time.monotonic() - self._started) / 60, 1),
            "cores": os.cpu_count(),
            "load": [round(min(self._loads), 1), round(max(self._loads), 1)] if self._loads else [],
            "cells": [asdict(cell) for cell in self._cells],
        }


def page_part(record: dict[str, Any]) -> str:
    """Return the sentence and the table of a run."""
    least, most = record["load"]
    lines = [
        f"One run, on {record['date']}: {len(record['cells'])} cells in {record['minutes']:.0f} "
        f"minutes on {record['cores']} cores, with a load average between {least} and {most}.",
        "",
        "| fault | service | phase | outcome | attempts | rounds | recovery, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["cells"]:
        cell = Cell(**row)
        named = [cell.fault, cell.service or "–", cell.phase or "–", cell.outcome]
        counted = [str(cell.attempts), str(cell.rounds), f"{cell.recovery_seconds:.1f}"]
        lines.append(f"| {' | '.join([*named, *counted])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Put the last run's table into the page."""
    record = json.loads(FILE.read_text())
    if record["failed"]:
        raise SystemExit(f"{record['failed']} tests failed in the run of {FILE.name}")
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    part = page_part(record)
    PAGE.write_text(f"{before}{BEGIN}{part}{END}{after}")


if __name__ == "__main__":
    main()
