import errno
import os
import stat
import subprocess
import sys

import pytest

from hedgerow.coordinator.server.artefacts import (
    Artefacts,
    StorageFailed,
    storage_failure,
)
from hedgerow.coordinator.server.journal import JobJournal
from hedgerow.crypto.durable import write_durably
from hedgerow.services.rpc.errors import Damaged


@pytest.fixture(params=["folder", "file-url", "memory"])
def artefacts(request, tmp_path):
    return Artefacts(
        {
            "folder": str(tmp_path / "store"),
            "file-url": f"file://{tmp_path}/store",
            "memory": f"memory://{tmp_path.name}/store",
        }[request.param]
    )


def test_a_file_comes_back_as_it_was_written(artefacts):
    data = bytes(range(256)) * 1000
    artefacts.write("job-1", "model.ubj", data)
    assert artefacts.exists("job-1", "model.ubj")
    assert artefacts.read("job-1", "model.ubj") == data
    artefacts.write("job-1", "model.ubj", b"new")
    assert artefacts.read("job-1", "model.ubj") == b"new"


def test_files_of_a_job_are_listed_by_name(artefacts):
    artefacts.write("job-1", "model.ubj", b"1")
    artefacts.write("job-1", "parts/guest.ubj", b"2")
    artefacts.write("job-2", "model.ubj", b"3")
    assert artefacts.list("job-1") == ("model.ubj", "parts/guest.ubj")
    assert artefacts.list("job-3") == ()


def test_a_deleted_file_is_gone_and_deleting_twice_is_no_error(artefacts):
    artefacts.write("job-1", "model.ubj", b"1")
    artefacts.delete("job-1", "model.ubj")
    artefacts.delete("job-1", "model.ubj")
    assert not artefacts.exists("job-1", "model.ubj")
    with pytest.raises(StorageFailed, match=r"job job-1 has no file model\.ubj"):
        artefacts.read("job-1", "model.ubj")


def test_a_jobs_journal_keeps_the_last_record_of_a_key_and_no_other_jobs(artefacts):
    journal = JobJournal(artefacts, "job-1")
    assert journal.recall("histogram/begun") is None
    journal.remember("histogram/begun", b"1")
    journal.remember("histogram/begun", b"2")
    assert JobJournal(artefacts, "job-1").recall("histogram/begun") == b"2"
    assert JobJournal(artefacts, "job-2").recall("histogram/begun") is None


def test_checkpoints_are_kept_by_round_and_pruned(artefacts):
    for k in (0, 2, 10):
        artefacts.write_checkpoint("job-1", k, b"%d" % k)
    artefacts.write("job-1", "model.ubj", b"m")
    assert artefacts.checkpoints("job-1") == (0, 2, 10)
    assert artefacts.read_checkpoint("job-1", 10) == b"10"
    artefacts.prune_checkpoints("job-1", keep={2, 10})
    assert artefacts.checkpoints("job-1") == (2, 10)
    assert artefacts.exists("job-1", "model.ubj")


@pytest.mark.parametrize("damage", [b"", b"\0", None])
def test_a_damaged_checkpoint_repeats_its_round_and_a_damaged_journal_is_named(artefacts, damage):
    for k in (3, 4):
        artefacts.write_checkpoint("job-1", k, b"%d" % k)
    assert artefacts.rounds_done("job-1") == 5
    journal = JobJournal(artefacts, "job-1")
    journal.remember("begun", b"1")
    for name in ("checkpoints/000004", "journal/begun"):
        whole = artefacts.read("job-1", name)
        flipped = whole[:-1] + bytes([whole[-1] ^ 1])
        artefacts.write("job-1", name, flipped if damage is None else damage)
    assert artefacts.rounds_done("job-1") == 4
    with pytest.raises(Damaged, match="journal/begun of job job-1 is damaged"):
        journal.recall("begun")
    artefacts.delete("job-1", "checkpoints/000003")
    assert artefacts.rounds_done("job-1") == 0


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "", ".hidden", "a//b", "a\0b"])
def test_names_cannot_leave_the_jobs_folder(artefacts, name):
    with pytest.raises(StorageFailed, match="names of jobs and files"):
        artefacts.write("job-1", name, b"")
    with pytest.raises(StorageFailed, match="names of jobs and files"):
        artefacts.read(name, "model.ubj")


def test_local_files_are_private(tmp_path):
    Artefacts(str(tmp_path / "store")).write("job-1", "model.ubj", b"1")
    path = tmp_path / "store" / "job-1" / "model.ubj"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_full_disk_is_reported_as_such():
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left") as caught:
            write_durably(full, b"checkpoint")
    finally:
        os.close(full)
    assert caught.value.errno == errno.ENOSPC
    assert "no room left while writing a checkpoint" in str(
        storage_failure("writing a checkpoint", caught.value)
    )


@pytest.mark.process
def test_a_write_that_finds_no_room_leaves_earlier_rounds_whole_and_no_fragment(tmp_path):
    script = """
import resource, sys
from hedgerow.coordinator.server.artefacts import Artefacts, StorageFailed
store = Artefacts(sys.argv[1])
store.write_checkpoint("j", 0, b"0" * 1000)
store.write_checkpoint("j", 1, b"1" * 1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
for round in (1, 2):
    try:
        store.write_checkpoint("j", round, b"2" * 9000)
    except StorageFailed as error:
        print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert ran.stderr == ""
    assert ran.stdout.count("no room left while writing checkpoints/") == 2
    folder = tmp_path / "j" / "checkpoints"
    assert sorted(p.name for p in folder.iterdir()) == ["000000", "000001"]
    assert Artefacts(str(tmp_path)).read_checkpoint("j", 1) == b"1" * 1000


def test_an_unknown_file_system_is_told_plainly():
    with pytest.raises(StorageFailed, match="artefact store nonsense://"):
        Artefacts("nonsense://bucket")
