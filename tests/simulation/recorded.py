"""Runs that once failed, and runs that find a fault which is put back, one line each.

A run is stored with its operations, so that another way to draw them changes none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation import running
from tests.simulation.faults import FAULTS
from tests.simulation.operations import Operation, Plan
from tests.simulation.running import Undisturbed

FILE = Path(__file__).with_name("recorded.jsonl")


@dataclass(frozen=True)
class Recorded:
    """A run that is kept."""

    plan: Plan
    found: str
    """What it found when it was first run; empty of a search that found nothing."""
    fault: str = ""
    """The fault that has to be put back for that; empty where it was in the product."""
    n_seeds: int = 0
    n_operations: int = 0
    """``n_seeds`` and ``n_operations``: what it took to find the fault."""

    def line(self) -> str:
        """Return its line of the file."""
        operations = [[o.after, o.kind, o.name, o.number, o.file] for o in self.plan.operations]
        document = {
            "seed": self.plan.seed,
            "silos": len(self.plan.silos),
            "found": self.found,
            "fault": self.fault,
            "n_seeds": self.n_seeds,
            "n_operations": self.n_operations,
            "operations": operations,
        }
        return json.dumps(document) + "\n"

    def check(self, undisturbed: Undisturbed) -> str:
        """Run it; return what is wrong with that, or nothing."""
        with FAULTS[self.fault].put_back() if self.fault else nullcontext():
            result = running.done(self.plan, whole=not self.fault)
        undisturbed.check(result)
        if self.fault:
            return "" if result.violations else "it is not found any more"
        return "; ".join(result.violations)


def _lines() -> Iterator[dict[str, Any]]:
    return map(json.loads, FILE.read_text().splitlines())


def load() -> Iterator[Recorded]:
    """Yield the runs that are kept."""
    for one in _lines():
        if not one["found"]:  # a search in vain
            continue
        silos = tuple(f"s{k}" for k in range(one["silos"]))
        plan = Plan(one["seed"], silos, tuple(Operation(*o) for o in one["operations"]))
        yield Recorded(plan, one["found"], one["fault"], one["n_seeds"], one["n_operations"])


def table() -> str:
    """Return what it took to find each fault, as docs/how-it-is-tested.md has it."""
    head = "| fault that is put back | what a run says | runs | operations | needed at most |"
    known = {one["fault"]: one for one in sorted(_lines(), key=lambda one: bool(one["found"]))}
    rows = []
    for fault in FAULTS:
        one = known.get(fault)
        cells = ["no search is recorded", "", "", ""]
        if one is not None:
            said = one["found"].strip().replace("|", "\\|") or "**not found**"
            needed = len(one["operations"]) if one["found"] else ""
            cells = [said, one["n_seeds"], one["n_operations"], needed]
        rows.append("| " + " | ".join(map(str, [fault, *cells])) + " |")
    return "\n".join([head, "|---|---|---|---|---|", *rows]) + "\n"
