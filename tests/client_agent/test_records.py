"""Records on a disk that tears, loses and changes them."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.client_agent.records import RecordDamaged, Records
from hedgerow.client_agent.state import StateFolder

KEY = b"k" * 32


def records_in(folder: Path) -> Records:
    return Records(folder / "memory", folder / "turns", KEY)


def torn(slot: Path) -> None:
    data = slot.read_bytes()
    slot.write_bytes(data[:60] + bytes(len(data) - 60))


@settings(max_examples=20)
@given(values=st.lists(st.binary(max_size=40_000), max_size=6))
def test_the_newest_record_is_read(
    tmp_path_factory: pytest.TempPathFactory, values: list[bytes]
) -> None:
    records = records_in(tmp_path_factory.mktemp("records"))
    assert records.read("key") is None
    for value in values:
        records.write("key", value)
        assert records.read("key") == value


@pytest.mark.parametrize("n_records", [1, 2, 3])
def test_a_torn_write_leaves_the_record_before_it(tmp_path: Path, n_records: int) -> None:
    """The process dies after the slot was half-written: the counter has not moved."""
    records = records_in(tmp_path)
    for k in range(n_records - 1):
        records.write("key", b"value %d" % k * 100)
    counter = tmp_path / "turns/key"
    before = counter.read_bytes() if counter.exists() else None
    records.write("key", b"torn" * 100)
    torn(tmp_path / f"memory/key.{(n_records - 1) % 2}")
    if before is None:
        records._count("key", 0)
    else:
        counter.write_bytes(before)
    expected = b"value %d" % (n_records - 2) * 100 if n_records > 1 else None
    assert records.read("key") == expected
    records.write("key", b"after")
    assert records.read("key") == b"after"


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at % len(data)] ^= 1
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a bit of the head": lambda slot: flip(slot, 17),
    "a bit of the length": lambda slot: flip(slot, 24),
    "a bit of the checksum": lambda slot: flip(slot, 40),
    "a bit of the value": lambda slot: flip(slot, 70),
    "cut": lambda slot: os.truncate(slot, 70),
    "emptied": lambda slot: os.truncate(slot, 0),
    "removed": lambda slot: slot.unlink(),
    "the other slot in its place": lambda slot: (
        slot.write_bytes(slot.with_name("key.1" if slot.name == "key.0" else "key.0").read_bytes())
        if slot.with_name("key.1").exists()
        else torn(slot)
    ),
}


@pytest.mark.parametrize("n_records", [1, 2, 3])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_was_written_never_gives_way_to_an_older_one(
    tmp_path: Path, n_records: int, damage: str
) -> None:
    records = records_in(tmp_path)
    for k in range(n_records):
        records.write("key", b"spent %d" % k * 5)
    DAMAGES[damage](tmp_path / f"memory/key.{(n_records - 1) % 2}")
    with pytest.raises(RecordDamaged, match="is damaged on this silo's disk, or older"):
        records.read("key")
    with pytest.raises(RecordDamaged):
        records_in(tmp_path).write("key", b"spent 0")


def test_an_older_copy_of_both_slots_is_refused(tmp_path: Path) -> None:
    records = records_in(tmp_path)
    for k in range(2):
        records.write("key", b"spent %d" % k)
    older = {file: file.read_bytes() for file in (tmp_path / "memory").iterdir()}
    records.write("key", b"spent 2")
    for file, data in older.items():
        file.write_bytes(data)
    with pytest.raises(RecordDamaged):
        records.read("key")


def test_a_damaged_older_slot_does_no_harm(tmp_path: Path) -> None:
    records = records_in(tmp_path)
    for k in range(3):
        records.write("key", b"value %d" % k)
    flip(tmp_path / "memory/key.1", 70)
    assert records.read("key") == b"value 2"


@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_lost_counter_is_made_up_for_by_two_whole_slots_and_by_nothing_less(
    tmp_path: Path, damage: str
) -> None:
    records = records_in(tmp_path)
    counter = tmp_path / "turns/key"
    for n_records in (1, 2, 3):
        records.write("key", b"value %d" % n_records)
        before = counter.read_bytes()
        if damage == "gone":
            counter.unlink()
        else:
            counter.write_bytes(before[:20] if damage == "cut" else b"\xff" + before[1:])
        if n_records == 1:
            with pytest.raises(RecordDamaged):
                records.read("key")
            counter.write_bytes(before)
        else:
            assert records.read("key") == b"value %d" % n_records
    torn(tmp_path / "memory/key.0")
    with pytest.raises(RecordDamaged):
        records.read("key")


def test_a_counter_that_a_power_cut_left_behind_does_no_harm(tmp_path: Path) -> None:
    records = records_in(tmp_path)
    records.write("key", b"one")
    before = (tmp_path / "turns/key").read_bytes()
    records.write("key", b"two")
    (tmp_path / "turns/key").write_bytes(before)
    assert records.read("key") == b"two"


def test_records_of_another_name_or_another_folder_of_state_are_refused(tmp_path: Path) -> None:
    records = records_in(tmp_path)
    records.write("key", b"value")
    records.write("other", b"value")
    (tmp_path / "memory/key.0").write_bytes((tmp_path / "memory/other.0").read_bytes())
    with pytest.raises(RecordDamaged):
        records.read("key")
    with pytest.raises(RecordDamaged):
        Records(tmp_path / "memory", tmp_path / "turns", b"K" * 32).read("other")


def test_a_shorter_record_does_not_end_with_the_longer_one_before(tmp_path: Path) -> None:
    records = records_in(tmp_path)
    for value in (b"long" * 9000, b"longer" * 9000, b"short", b"s"):
        records.write("key", value)
        assert records.read("key") == value


def test_records_are_for_their_owner_only(tmp_path: Path) -> None:
    records_in(tmp_path).write("key", b"value")
    for file in (tmp_path / "memory/key.0", tmp_path / "turns/key"):
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_job_recalls_its_newest_record_of_a_key(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    memory = state.memory("job-1")
    for value in (b"older", b"newer"):
        memory.remember("key", value)
        assert state.memory("job-1").recall("key") == value
    assert state.memory("job-1").recall("other") is None
    state.close()


def test_a_first_record_for_which_there_was_no_room_leaves_none(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for n_bytes in (1, 41, 200):
        records = records_in(tmp_path / str(n_bytes))
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                records.write("key", bytes(500))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert records.read("key") is None
        records.write("key", b"value")
        assert records.read("key") == b"value"
