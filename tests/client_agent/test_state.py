"""Each file of an agent's state folder, damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.client_agent.keeper import VaultSessions
from hedgerow.client_agent.records import RecordDamaged
from hedgerow.client_agent.state import StateFolder
from hedgerow.client_agent.timing import Stopwatch
from hedgerow.crypto.errors import VaultRefused
from hedgerow.crypto.vault.interface import MaskGroup
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.federation.processes import wait_until


@pytest.mark.parametrize("junk", [b"", b"\xff\xfe", b"not a name\n", b"0123"])
def test_a_damaged_instance_file_is_set_aside_with_one_line_for_a_new_name(
    tmp_path: Path, junk: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    state = StateFolder(tmp_path)
    first = state.instance_id
    assert state.instance_id == first
    capsys.readouterr()
    (tmp_path / "instance").write_bytes(junk)
    second = state.instance_id
    assert second != first
    assert len(second) == 32
    assert state.instance_id == second
    assert capsys.readouterr().out.count("set aside") == 1
    assert (tmp_path / "instance.damaged").read_bytes() == junk
    state.close()


@pytest.mark.parametrize("junk", [b"\xff\xfe\0", b"", b"job-2/1/0.0.0", b"job-1/1/0.0.0\nx"])
def test_keys_whose_note_is_damaged_are_erased_with_their_job(
    tmp_path: Path, junk: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    state, vault = StateFolder(tmp_path), LocalVault()
    keeper = VaultSessions(state, lambda pause: vault)
    noting = keeper.attempt("job-1", lambda: None, Stopwatch())
    held = noting.__enter__()
    session = "job-1/1/0.0.0"
    public = held.create_mask_key(session)
    held.create_mask_key("job-1")
    vault.create_mask_key("job-10/1/0.0.0")
    note = tmp_path / "jobs/job-1/memory/sessions"
    capsys.readouterr()
    note.write_bytes(junk)
    assert keeper.jobs(()) == ("job-1",)
    assert state.sessions("job-1") == ("job-1",)
    assert capsys.readouterr().out.count("set aside") == 1
    keeper.end("job-1")
    wait_until(lambda: not note.exists(), 30, "the job's keys are erased")
    for name in (session, "job-1"):
        with pytest.raises(VaultRefused, match="erased"):
            vault.join_group(group(name, public))
    with pytest.raises(VaultRefused, match="expected"):  # another job's key is there
        vault.join_group(group("job-10/1/0.0.0", public))
    state.close()


def group(session: str, key: bytes) -> MaskGroup:
    return MaskGroup(
        session=session, silo="a", members=("c", "b", "a"), public_keys=(key,) * 3,
        threshold=2, digest=bytes(32),
    )  # fmt: skip


def test_a_new_session_is_noted_beside_a_damaged_note(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    state.note_session("job-1", "job-1/1/0.0.0")
    (tmp_path / "jobs/job-1/memory/sessions").write_bytes(b"\xff")
    state.note_session("job-1", "job-1/2/0.0.0")
    assert state.sessions("job-1") == ("job-1", "job-1/2/0.0.0")
    state.close()


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_records_whose_key_is_lost_are_refused_and_new_ones_kept(
    tmp_path: Path, damage: bytes | None
) -> None:
    state = StateFolder(tmp_path)
    state.memory("job-1").remember("spec", b"digest")
    state.close()
    key = tmp_path / "records.key"
    if damage is None:
        key.unlink()
    else:
        key.write_bytes(damage)
    state = StateFolder(tmp_path)
    with pytest.raises(RecordDamaged):
        state.memory("job-1").recall("spec")
    state.memory("job-2").remember("spec", b"digest")
    assert state.memory("job-2").recall("spec") == b"digest"
    state.close()
