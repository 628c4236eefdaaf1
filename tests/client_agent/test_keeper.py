"""Sessions of the vault are noted before they hold a secret, and erased when they end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hedgerow.boosting.errors import Unreachable
from hedgerow.client_agent.keeper import AttemptVault, VaultSessions
from hedgerow.client_agent.state import StateFolder
from hedgerow.client_agent.timing import Stopwatch
from hedgerow.crypto.errors import NothingHeld, VaultRefused
from hedgerow.crypto.vault.local_vault import LocalVault


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFolder]:
    folder = StateFolder(tmp_path)
    yield folder
    folder.close()


def ticking() -> Callable[[], float]:
    """A clock that goes on by a second whenever it is read."""
    return iter(range(1000)).__next__


def test_calls_are_passed_on_and_their_seconds_counted() -> None:
    stopwatch = Stopwatch(ticking())
    vault = AttemptVault(LocalVault(), lambda session: None, stopwatch)
    assert len(vault.create_mask_key("session")) == 32
    assert stopwatch.seconds == 1.0
    with pytest.raises(VaultRefused):
        vault.seal_shares("another", 0, 1, ("a", "b", "c"))
    assert stopwatch.seconds == 2.0


def test_sessions_are_noted_before_the_vault_has_them(state: StateFolder) -> None:
    vault = AttemptVault(
        LocalVault(), lambda session: state.note_session("job-1", session), Stopwatch()
    )
    vault.create_mask_key("job-1/1/0")
    vault.blind_identifiers(session="job-1/1/psi", ids=[b"a"])
    vault.forget_session("job-1/1/0")
    assert state.sessions("job-1") == ("job-1/1/0", "job-1/1/psi")
    assert state.jobs_with_sessions() == ("job-1",)
    state.let_go("job-1", {"job-1/1/0"})
    assert state.sessions("job-1") == ("job-1/1/psi",)
    state.let_go("job-1", {"job-1/1/psi"})
    assert state.jobs_with_sessions() == ()


def test_a_session_that_could_not_be_noted_is_not_made() -> None:
    made: list[str] = []

    class Counting(LocalVault):
        def create_mask_key(self, session: str) -> bytes:
            made.append(session)
            return super().create_mask_key(session)

    def broken(session: str) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        AttemptVault(Counting(), broken, Stopwatch()).create_mask_key("s")
    assert made == []


def test_an_attempt_ends_with_its_sessions_and_leaves_the_job_its_key(state: StateFolder) -> None:
    local = LocalVault()
    secrets = VaultSessions(state, lambda pause: local)

    def failing() -> None:
        with secrets.attempt("job-1", lambda: None, Stopwatch()) as vault:
            vault.create_cipher_key("job-1", scheme="elgamal")
            vault.create_mask_key("job-1/1/0")
            assert state.sessions("job-1") == ("job-1", "job-1/1/0")
            raise RuntimeError("the attempt failed")

    with pytest.raises(RuntimeError, match="the attempt failed"):
        failing()
    assert state.sessions("job-1") == ("job-1",)
    assert local.encrypt_integers("job-1", [1]).shape == (1, 96)
    assert secrets.jobs(busy=["job-1"]) == ()
    assert secrets.jobs(busy=[]) == ("job-1",)


def test_the_end_of_a_job_erases_its_key_once_the_vault_is_there(state: StateFolder) -> None:
    local = LocalVault()
    found = [local, Unreachable("the crypto process is away")]

    def vault(pause: object) -> LocalVault:
        one = found.pop()
        if isinstance(one, Unreachable):
            raise one
        return one

    secrets = VaultSessions(state, vault)
    local.create_cipher_key("job-1", scheme="elgamal")
    state.note_session("job-1", "job-1")
    for left in (("job-1",), ()):
        secrets.end("job-1")
        for thread in threading.enumerate():
            if thread.name == "forget job-1":
                thread.join()
        assert secrets.jobs(busy=[]) == left
    with pytest.raises(NothingHeld):
        local.encrypt_integers("job-1", [1])
