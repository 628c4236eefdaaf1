"""What may happen to a process, drawn by a seed: begun at a named event, and over when it is left.

Each fault is a context. A fault waits for what it does to be felt where that can be seen, as the
coordinator's line about a lost silo; a freeze that nobody may notice lasts a given time.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hedgerow.boosting.errors import FederationError
from tests.chaos.arena import LEASE_SECONDS, Arena
from tests.chaos.test_state_files import DAMAGES, damage

NO_DAMAGE = frozenset({"lock", "room", "ready"})


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A fault that is to happen.

    Parameters
    ----------
    kind : str
        Key of :data:`KINDS`.
    victim : str
        Process that it happens to.
    watched, after : str, int
        It begins when this silo has offered so often.
    seed : int
        Of its own choices.
    """

    kind: str
    victim: str
    watched: str
    after: int
    seed: int

    def __str__(self) -> str:
        return f"{self.kind} {self.victim} after {self.after} offers of {self.watched}"


Fault = Callable[[Arena, str, random.Random], "Iterator[list[str]]"]


def _killed(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """SIGKILL; it starts again."""
    fed.kill(victim)
    yield []
    fed.restart(victim)


def _ended(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """SIGTERM; it starts again."""
    fed.kill(victim, signal.SIGTERM)
    assert fed.processes[victim].returncode == 0, fed.log(victim)[-2000:]
    yield []
    fed.restart(victim)


def _frozen(seconds: float) -> Fault:
    def frozen(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
        fed.kill(victim, signal.SIGSTOP)
        time.sleep(seconds * rng.uniform(0.5, 1.0))
        yield []
        fed.kill(victim, signal.SIGCONT)
        # A coordinator that was stopped while it wrote a file for longer than its lease ends.
        time.sleep(0.2)
        if victim == "coordinator" and fed.processes[victim].poll() == -signal.SIGALRM:
            fed.restart(victim)

    return frozen


def _damaged(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """One file of an agent's state changes while it is down."""
    folder = fed.disk(victim)
    older = _older(fed, victim)
    results = set(folder.glob("jobs/*/*.*"))  # what a silo keeps of a job when it has ended
    files = _newest({*folder.rglob("*")} - results)
    # Files of this job are the newest; older jobs' are as good as any, but do nothing.
    file = rng.choice(files[-12:] if rng.random() < 0.7 else files)
    yield from _changed(fed, victim, file, older, rng)
    if file.relative_to(folder).parts[0] == "privacy":  # refused for good; an operator restores it
        fed.damaged = (victim, file, (_whole(fed, victim) / file.relative_to(folder)).read_bytes())


def _damaged_files(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """A checkpoint, a record inside a round or the schema changes while the coordinator is down."""
    artefacts = fed.disk(victim) / "artefacts"
    older = _older(fed, victim)
    kinds = ("*/checkpoints/*", "*/journal/**/*", "*/schema.json")
    files = _newest(file for kind in kinds for file in artefacts.glob(kind))
    yield from _changed(fed, victim, rng.choice(files[-3:]), older, rng)


def _damaged_database(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """The database or its log changes while the coordinator is down; a lost job is restored."""
    folder = fed.disk(victim) / "database"
    jobs = {view.job_id for view in fed.client.list()}
    older = _older(fed, victim)
    files = [file for file in folder.glob("state.db*") if not file.name.endswith("-shm")]
    yield from _changed(fed, victim, rng.choice(sorted(files)), older, rng)
    why, there = "", set[str]()
    try:
        there = {view.job_id for view in fed.client.list()}
    except FederationError as error:
        why = str(error)
    if jobs - there:
        told = "jobs have files and are not in the database"
        assert "database is damaged" in why or told in fed.log(victim), (jobs - there, why)
        fed.kill(victim)
        shutil.copytree(_whole(fed, victim) / "database", folder, dirs_exist_ok=True)
        fed.restart(victim)


def _older(fed: Arena, victim: str) -> Path:
    """Copy a process' files, let it work on, and end it; returns the copy."""
    older = fed.folder / f"older-{victim}"
    shutil.rmtree(older, ignore_errors=True)
    shutil.copytree(fed.disk(victim), older, copy_function=_copied)
    time.sleep(0.1)
    fed.kill(victim)
    return older


def _copied(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # the process is at work, and removes some
        shutil.copy2(source, target)


def _whole(fed: Arena, victim: str) -> Path:
    return fed.folder / f"before-{victim}"


def _newest(files: Iterable[Path]) -> list[Path]:
    """Return the files that may be damaged, the newest last."""
    found = (f for f in files if f.is_file() and f.name not in NO_DAMAGE)
    return sorted(found, key=lambda f: (f.stat().st_mtime_ns, str(f)))


def _changed(
    fed: Arena, victim: str, file: Path, older: Path, rng: random.Random
) -> Iterator[list[str]]:
    """Damage a file of a process that is down, and start it; where it refuses, restore the file."""
    whole, name = _whole(fed, victim), file.relative_to(fed.disk(victim))
    shutil.rmtree(whole, ignore_errors=True)
    shutil.copytree(fed.disk(victim), whole)
    kind = rng.choice(DAMAGES)
    damage(file, older / name, kind, rng)
    yield [f"{kind} of {name}"]
    fed.restart(victim)
    if not fed.alive(victim):
        # It must say which file; an operator restores that file and starts it again.
        last = fed.log(victim).strip().splitlines()[-1]
        assert "Traceback" not in last
        assert fed.processes[victim].returncode == 2, last
        shutil.copytree((whole / name).parent, file.parent, dirs_exist_ok=True)
        fed.restart(victim)
        assert fed.alive(victim), fed.log(victim)[-2000:]


def _disk_full(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    filler = fed.disk(victim) / "filler"
    with filler.open("wb") as file:
        block = bytes(1 << 16)
        for size in (1 << 16, 1 << 12, 1):
            while True:
                try:
                    os.write(file.fileno(), block[:size])
                except OSError:
                    break
    time.sleep(rng.uniform(0.3, 3.0))
    yield []
    filler.unlink()


def _clock(seconds: float) -> Fault:
    def stepped(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
        fed.clock(victim).write_text(str(seconds * rng.uniform(0.1, 1.0)))
        time.sleep(0.5)
        yield []
        fed.clock(victim).write_text("0")

    return stepped


def _cut(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    for _ in range(rng.randint(1, 4)):
        fed.proxies[_silo(victim)].cut()
        time.sleep(rng.uniform(0.0, 0.5))
    yield []


def _spoilt(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    for _ in range(rng.randint(1, 3)):
        fed.proxies[_silo(victim)].trick(rng.choice(("repeat", "swap", "half")))
        time.sleep(rng.uniform(0.0, 0.5))
    yield []


def _delayed(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    fed.proxies[_silo(victim)].delay(rng.uniform(0.01, 0.2))
    time.sleep(2.0)
    yield []
    fed.proxies[_silo(victim)].delay(0.0)


def _held(seconds: float) -> Fault:
    def held(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
        fed.proxies[_silo(victim)].hold(True)
        time.sleep(seconds * rng.uniform(0.5, 1.0))
        yield []
        fed.proxies[_silo(victim)].hold(False)

    return held


def _locked(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """Another process holds the database's lock: it is slow."""
    database = sqlite3.connect(fed.disk("coordinator") / "database/state.db", timeout=30.0)
    database.isolation_level = None
    database.execute("BEGIN IMMEDIATE")
    time.sleep(rng.uniform(0.3, 3.0))
    yield []
    database.execute("ROLLBACK")
    database.close()


def _away(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """The database's folder is elsewhere: open connections may only read, others find nothing."""
    folder = fed.disk("coordinator") / "database"
    folder.rename(folder.with_name("elsewhere"))
    time.sleep(rng.uniform(0.3, 3.0))
    yield []
    folder.with_name("elsewhere").rename(folder)


AGENT, COORDINATOR = "agent", "coordinator"
KINDS: dict[str, tuple[str, Fault]] = {
    "killed agent": (AGENT, _killed),
    "killed coordinator": (COORDINATOR, _killed),
    "ended agent": (AGENT, _ended),
    "ended coordinator": (COORDINATOR, _ended),
    "briefly frozen agent": (AGENT, _frozen(0.7 * LEASE_SECONDS)),
    "long frozen agent": (AGENT, _frozen(3.0 * LEASE_SECONDS)),
    "briefly frozen coordinator": (COORDINATOR, _frozen(0.7 * LEASE_SECONDS)),
    "long frozen coordinator": (COORDINATOR, _frozen(3.0 * LEASE_SECONDS)),
    "damaged state of agent": (AGENT, _damaged),
    "damaged files of coordinator": (COORDINATOR, _damaged_files),
    "damaged database": (COORDINATOR, _damaged_database),
    "full disk of agent": (AGENT, _disk_full),
    "full disk of coordinator": (COORDINATOR, _disk_full),
    "clock of agent forward": (AGENT, _clock(86_400.0)),
    "clock of agent back": (AGENT, _clock(-120.0)),
    "clock of coordinator forward": (COORDINATOR, _clock(86_400.0)),
    "clock of coordinator back": (COORDINATOR, _clock(-120.0)),
    "cut connections": (AGENT, _cut),
    "spoilt connections": (AGENT, _spoilt),
    "slow connection": (AGENT, _delayed),
    "briefly held connection": (AGENT, _held(0.7 * LEASE_SECONDS)),
    "long held connection": (AGENT, _held(3.0 * LEASE_SECONDS)),
    "locked database": (COORDINATOR, _locked),
    "database away": (COORDINATOR, _away),
}
ON_DISKS = frozenset({"full disk of agent", "full disk of coordinator"})
"""Kinds that need small disks, which not everybody may mount."""
LOSSLESS = frozenset(
    {
        "briefly frozen agent",
        "briefly frozen coordinator",
        "clock of agent forward",
        "clock of agent back",
        "clock of coordinator forward",
        "clock of coordinator back",
        "slow connection",
        "briefly held connection",
        "locked database",
        "database away",
    }
)
"""Kinds after which both sides have counted the same bytes: no connection breaks."""
GONE = "has restarted|no sign of life|its agent was ended"
"""Why an attempt ends, in the coordinator's words, when an agent or its connection is away."""
DISK = "disk of this silo's state folder is full|ledger of s[0-2] cannot be written"
CAUSES = {"full disk of agent": DISK, "damaged state of agent": f"{GONE}|damaged|older than"}
"""The same of other faults of agents."""
DAMAGING = frozenset({"damaged state of agent", "damaged files of coordinator", "damaged database"})
"""Kinds after which a job may fail, if it says why."""


def drawn(seed: int, exchanges: dict[str, int], kinds: Sequence[str]) -> list[Disturbance]:
    """Return the faults of a seed: one, or two of different processes.

    Parameters
    ----------
    exchanges : dict
        How often each silo offers when nothing happens.
    kinds : sequence of str
        Keys of :data:`KINDS`.
    """
    rng = random.Random(seed)
    shuffled = [*kinds]
    rng.shuffle(shuffled)
    found: list[Disturbance] = []
    for kind in shuffled:
        watched = rng.choice(sorted(exchanges))
        after = rng.randrange(exchanges[watched])
        part = KINDS[kind][0]
        victim = part if part == "coordinator" else f"agent-{rng.choice(sorted(exchanges))}"
        if victim not in {fault.victim for fault in found}:
            found.append(Disturbance(kind, victim, watched, after, rng.randrange(1 << 30)))
        if len(found) == 1 + (seed % 4 == 3):
            break
    return found


@contextmanager
def happening(fed: Arena, one: Disturbance) -> Iterator[list[str]]:
    """Let a fault happen; yields what is known of it."""
    with ExitStack() as stack:
        context = contextmanager(KINDS[one.kind][1])
        yield stack.enter_context(context(fed, one.victim, random.Random(one.seed)))


def _silo(victim: str) -> str:
    return victim.removeprefix("agent-")
