"""What is done to a federation: drawn from a seed, applied in order, and dropped one by one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulation.federation import COORDINATOR, NAMES, OPERATOR, Federation
from tests.simulation.network import DOWN, UP

SCALES = (0.05, 0.3, 1.0, 5.0)
"""Longest times before an operation, seconds: within a message's way, a round, a lease, a step."""
AT_COORDINATOR = ("state.db", "checkpoints", "journal", "model", "schema")
AT_AGENT = (
    "accounts", "copy", "ledger.jsonl", "ledger.jsonl", "accepted", "memory", "turns", "jobs",
    "model", "vault", "opened",
)  # fmt: skip
LONG = 40.0
"""Once in some runs, seconds: silos of an attempt are awaited for 30."""
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
    """Return the run of a seed: few kinds of operations, so that each meets itself often enough."""
    draws = random.Random(f"operations {seed}")
    silos = tuple(f"s{k}" for k in range(draws.choice((3, 3, 3, 4, 4, 5))))
    agents = tuple(f"agent-{silo}" for silo in silos)
    found = [Operation(draws.random(), "submit", draws.choice(NAMES), draws.randint(0, 1))]
    if draws.random() < 0.7:  # the job has begun when the next one comes
        found.append(Operation(round(1.0 + draws.random(), 3), "advance"))
    kinds = {kind: often for kind, often in _KINDS.items() if draws.random() < 0.6} or _KINDS
    of_coordinator = draws.choice((0.1, 0.3, 0.8))
    few = draws.sample(agents, draws.choice((1, 2, len(agents))))
    files = draws.sample(AT_AGENT, draws.randint(1, 3))
    drawn: list[tuple[str, str, float, str]] = []
    for _ in range(draws.randint(1, 10)):
        agent = draws.choice(few)
        name = COORDINATOR if draws.random() < of_coordinator else agent
        kind = draws.choices(*zip(*kinds.items(), strict=True))[0]
        number: float = 0
        file = ""
        if kind == "submit":
            name, number = draws.choice(NAMES), draws.randint(0, 1)
        elif kind in ("kill", "power", "twice"):
            number = draws.choice((0, draws.randint(1, 120)))
            if kind == "twice" or draws.random() < 0.7:
                number = draws.randint(1, 9)
                file = draws.choice(AT_COORDINATOR if name == COORDINATOR else files)
        elif kind in ("cut", "slow", "reset"):
            name = OPERATOR if draws.random() < 0.1 else agent
            number = draws.randint(1, 3) if kind == "cut" else draws.random() * 2
        elif kind == "skew":
            number = draws.uniform(-MOST_SKEW, MOST_SKEW)
        at = len(drawn)
        drawn.append((kind, name, round(number, 3), file))
        if kind in _ENDS and draws.random() < 0.7:
            drawn.insert(draws.randint(at + 1, at + 3), (_ENDS[kind], name, 0, ""))
    away = draws.randrange(len(drawn)) if draws.random() < 0.1 else -1
    for k, one in enumerate(drawn):
        after = LONG if k == away else round(draws.random() * draws.choice(SCALES), 3)
        found.append(Operation(after, *one))
    return Plan(seed, silos, tuple(found))


_KINDS = {
    "submit": 1, "kill": 4, "power": 6, "twice": 3, "cut": 3, "slow": 1, "reset": 2, "full": 4,
    "cancel": 0.2, "skew": 0.4,
}  # fmt: skip
_ENDS = {"kill": "restart", "power": "restart", "cut": "heal", "slow": "heal", "full": "room"}
"""What ends a fault, before all that is left ends together."""


def apply(federation: Federation, one: Operation) -> None:
    """Do one operation."""
    federation.note(f"operation {one}")
    process = federation.processes.get(one.name)
    if one.kind == "submit":
        federation.submit(one.name, len(federation.silos) - int(one.number))
    elif one.kind in ("kill", "power", "twice") and process is not None and process.alive:
        process.power = one.kind == "power"
        process.again = one.kind == "twice"
        if one.number:
            process.armed = process.times = int(one.number)
            process.armed_at = one.file
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
    federation.network.heal(OPERATOR)
    federation.forget_arms()
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
