"""What is done to a federation: drawn from a seed, applied in order, and dropped one by one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulation.federation import COORDINATOR, NAMES, Federation
from tests.simulation.network import DOWN, UP

SCALES = (0.05, 0.3, 1.0, 5.0)
"""Longest times before an operation, seconds: within a message's way, a round, a lease, a step."""
AT_COORDINATOR = ("state.db", "checkpoints", "journal", "model", "schema")
AT_AGENT = ("accounts", "ledger.jsonl", "accepted", "memory", "turns", "jobs", "vault", "opened")
MOST_SKEW = 2.0
"""Clocks that are further off refuse certificates."""


@dataclass(frozen=True)
class Operation:
    """One of them, and how long after the one before it comes."""

    after: float
    kind: str
    name: str = ""
    number: float = 0
    file: str = ""
    """Of a kill: part of the paths whose durable calls are counted down."""

    def __str__(self) -> str:
        text = f"+{self.after:.3f} {self.kind} {self.name} {self.number:g} {self.file}"
        return text.rstrip()


@dataclass(frozen=True)
class Plan:
    """A run: its seed, its silos, and what is done to them."""

    seed: int
    silos: tuple[str, ...]
    operations: tuple[Operation, ...]
    kept: tuple[int, ...] | None = None
    """Numbers of the operations that are left, of all that the seed draws."""

    @property
    def line(self) -> str:
        """The command that repeats this run."""
        only = "" if self.kept is None else f" --only {','.join(map(str, self.kept))}"
        return f"python -m tests.simulation --seed {self.seed}{only or ''}"

    def of(self, kept: Sequence[int]) -> Plan:
        """Return the run with some of the operations."""
        left = tuple(self.operations[k] for k in kept)
        if self.kept is not None:
            kept = [self.kept[k] for k in kept]
        return Plan(self.seed, self.silos, left, tuple(kept))


def draw(seed: int) -> Plan:
    """Return the run of a seed."""
    draws = random.Random(f"operations {seed}")
    silos = tuple(f"s{k}" for k in range(draws.randint(3, 5)))
    processes = (COORDINATOR, *(f"agent-{silo}" for silo in silos))
    found = [Operation(draws.random(), "submit", draws.choice(NAMES), draws.randint(0, 1))]
    if draws.random() < 0.7:  # the job has begun when the next one comes
        found.append(Operation(round(1.0 + draws.random(), 3), "advance"))
    for _ in range(draws.randint(1, 14)):
        after = round(draws.random() * draws.choice(SCALES), 3)
        name = draws.choice(processes)
        agent = draws.choice(processes[1:])
        kind = draws.choices(*zip(*_KINDS.items(), strict=True))[0]
        number: float = 0
        file = ""
        if kind == "submit":
            name, number = draws.choice(NAMES), draws.randint(0, 1)
        elif kind in ("kill", "power"):
            number = draws.choice((0, draws.randint(1, 12), draws.randint(1, 120)))
            if number and draws.random() < 0.7:
                number = draws.randint(1, 9)
                file = draws.choice(AT_COORDINATOR if name == COORDINATOR else AT_AGENT)
        elif kind in ("cut", "slow", "reset", "heal"):
            name = agent
            number = draws.randint(1, 3) if kind == "cut" else draws.random() * 2
        elif kind == "skew":
            number = draws.uniform(-MOST_SKEW, MOST_SKEW)
        found.append(Operation(after, kind, name, round(number, 3), file))
    return Plan(seed, silos, tuple(found))


_KINDS = {
    "submit": 1, "kill": 4, "power": 4, "restart": 4, "cut": 3, "heal": 3, "slow": 1, "reset": 3,
    "full": 2, "room": 2, "cancel": 0.3, "skew": 0.5,
}  # fmt: skip


def apply(federation: Federation, one: Operation) -> None:
    """Do one operation."""
    federation.note(f"operation {one}")
    process = federation.processes.get(one.name)
    if one.kind == "submit":
        federation.submit(one.name, len(federation.silos) - int(one.number))
    elif one.kind in ("kill", "power") and process is not None and process.alive:
        process.power = one.kind == "power"
        if one.number:
            process.armed, process.armed_at = int(one.number), one.file
        else:
            federation.kill(one.name)
    elif one.kind == "restart":
        federation.start(one.name)
    elif one.kind == "cut":
        ways = {1: (UP,), 2: (DOWN,), 3: (UP, DOWN)}[int(one.number)]
        federation.network.cut(one.name, ways)
    elif one.kind == "heal":
        federation.network.heal(one.name)
    elif one.kind == "slow":
        federation.network.lines[one.name].slow = one.number
    elif one.kind == "reset":
        federation.network.reset(one.name)
    elif one.kind in ("full", "room"):
        federation.disks.by_name[one.name].full = one.kind == "full"
    elif one.kind == "cancel" and federation.jobs:
        federation.cancel(federation.jobs[-1])
    elif one.kind == "skew" and process is not None:
        process.skew = one.number


def mend(federation: Federation) -> None:
    """End all faults."""
    federation.note("mended")
    for name in federation.names:
        federation.network.heal(name)
        federation.disks.by_name[name].full = False
        process = federation.processes[name]
        process.armed, process.skew = None, 0.0
        federation.start(name)


def shrink(plan: Plan, fails: Callable[[Plan], bool], tries: int = 60) -> Plan:
    """Return a run that still fails, without operations that it does not need."""
    kept = list(range(len(plan.operations)))
    size = max(len(kept) // 2, 1)
    while size:
        at = 0
        while at < len(kept) and tries > 0:
            fewer = kept[:at] + kept[at + size :]
            tries -= 1
            if fewer and fails(plan.of(fewer)):
                kept = fewer
            else:
                at += size
        size = 0 if size == 1 or tries <= 0 else size // 2
    return plan.of(kept)
