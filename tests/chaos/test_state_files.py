"""Every file of an agent's state folder, damaged at random: nothing older is taken for the newest.

A folder is filled as jobs fill it, one file is damaged by a seeded choice, and the agent's parts
are opened again. Each part may work with all that was written last, or refuse in words of its own;
no older value, no other exception.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hedgerow.boosting.budget import Spending
from hedgerow.boosting.errors import FederationError
from hedgerow.client_agent.__main__ import _own_keys
from hedgerow.client_agent.accepted import ReplayGuard
from hedgerow.client_agent.accountant import TableAccount, read_accounts
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.client_agent.state import StateFolder
from hedgerow.crypto.errors import Refusal
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.process.ledgers import verify
from hedgerow.services.wire.signed_job import JobStatement, OpenedJob, SignedJob
from tests.chaos.work import SEEDS

DAMAGES = ("flip", "cut", "empty", "remove", "older", "junk")
JOBS = ("job-1", "job-2")
KEYS = ("spec", "spent", "once")


def job_of(number: int) -> OpenedJob:
    """A job that an operator has signed."""
    statement = JobStatement("trial", number.to_bytes(16, "big"), b"", 9e9, 1)
    return OpenedJob(SignedJob(b"%d" % number, b"", b""), statement, "olga")


def noise(folder: Path) -> bytes:
    """The noise of one question, which must not change while its key is there."""
    seed = LocalVault(noise_folder=_own_keys(folder / "vault/sealing.key")).derive_noise(b"q")
    return seed.key_id + seed.seed


def fill(folder: Path, turn: int) -> None:
    """Do what an agent does in a round."""
    state = StateFolder(folder)
    assert len(state.instance_id) == 32
    noise(folder)
    TableAccount(folder, "t").admit("job", 9.0).charge({str(turn): Spending("counts", 1.0, 1, 10)})
    accepted = ReplayGuard(state.accepted)
    for k in range(2 * turn, 2 * turn + 2):
        accepted.accept(job_of(k), 0.0)
    ledger = SiloLedger(state.ledger, "a", "coordinator", lambda: float(turn))
    for job in JOBS:
        memory = state.memory(job)
        for key in KEYS:
            if key != "once" or turn == 0:
                memory.remember(key, b"%s %s %d" % (job.encode(), key.encode(), turn) * 7)
        state.note_session(job, f"{job}/{turn}/0.0.0")
        ledger.record_call("AcceptAssignment", b"%d" % turn, job, True)
    ledger.close()
    state.close()


def damage(file: Path, older: Path, kind: str, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    if kind == "flip" and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "older" and older.exists():
        data = bytearray(older.read_bytes())
    elif kind == "junk":
        data = bytearray(rng.randbytes(rng.randrange(200)))
    else:
        data = data[: rng.randrange(max(len(data), 1))] if kind == "cut" else bytearray()
    if kind == "remove":
        file.unlink()
    else:
        file.write_bytes(data)


def check(folder: Path, last: int, drawn: bytes) -> list[str]:
    """Open all parts; return the refusals. ``drawn`` is the noise before the damage."""
    refusals: list[str] = []

    def attempt(work: Callable[[], None]) -> None:
        try:
            work()
        except (FederationError, Refusal) as error:
            refusals.append(str(error))

    def drawn_again() -> None:
        there = len([*(folder / "vault").glob("*.key")]) == 2
        again = noise(folder)
        # A new key has another name, so that what it hides is another answer, charged anew.
        assert again == drawn or not (there or again[:16] == drawn[:16])

    def spent() -> None:
        (job,) = read_accounts(folder).tables["t"].values()
        assert job.spent == last + 1

    def accepted() -> None:
        jobs = ReplayGuard(state.accepted)
        assert jobs.open == {job_of(k).statement.job_id for k in range(2 * last + 2)}

    state = StateFolder(folder)
    assert len(state.instance_id) == 32

    def recalled(job: str, key: str) -> None:
        turn = 0 if key == "once" else last
        expected = b"%s %s %d" % (job.encode(), key.encode(), turn) * 7
        assert state.memory(job).recall(key) == expected

    for part in (drawn_again, spent, accepted):
        attempt(part)
    for job in JOBS:
        for key in KEYS:
            attempt(lambda job=job, key=key: recalled(job, key))  # type: ignore[misc]
        noted = state.sessions(job)
        assert all(name == job or name.startswith(f"{job}/") for name in noted)
        state.note_session(job, f"{job}/new")
        assert f"{job}/new" in state.sessions(job)
    attempt(lambda: SiloLedger(state.ledger, "a", "coordinator", lambda: 9.0).close())
    if state.ledger.exists():
        attempt(lambda: _all_lines(state.ledger, last))
    state.close()
    return refusals


def _all_lines(ledger: Path, last: int) -> None:
    lines = [entry for entry in verify(ledger).entries if entry.call == "AcceptAssignment"]
    assert len(lines) >= len(JOBS) * (last + 1) - 1


@pytest.mark.parametrize("seed", SEEDS)
def test_no_damage_of_one_file_brings_back_what_was_before(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    last = rng.randrange(1, 4)
    folder, older = tmp_path / "state", tmp_path / "older"
    for turn in range(last + 1):
        if folder.exists():
            shutil.copytree(folder, older, dirs_exist_ok=True)
        fill(folder, turn)
    drawn = noise(folder)
    assert check(folder, last, drawn) == []
    files = sorted(f for f in folder.rglob("*") if f.is_file() and f.name != "lock")
    for file in files:
        for kind in rng.sample(DAMAGES, 2):
            trial = tmp_path / "trial"
            shutil.copytree(folder, trial)
            name = file.relative_to(folder)
            damage(trial / name, older / name, kind, rng)
            check(trial, last, drawn)
            shutil.rmtree(trial)
