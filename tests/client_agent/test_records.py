from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.client_agent.records import RecordDamaged, read_record, write_record
from hedgerow.client_agent.state import StateFolder


@settings(max_examples=20)
@given(values=st.lists(st.binary(max_size=40_000), max_size=6))
def test_the_newest_record_is_read(
    tmp_path_factory: pytest.TempPathFactory, values: list[bytes]
) -> None:
    file = tmp_path_factory.mktemp("records") / "folder" / "key"
    assert read_record(file) is None
    for value in values:
        write_record(file, value)
        assert read_record(file) == value


@pytest.mark.parametrize("n_records", [2, 3])
@pytest.mark.parametrize("damage", ["cut", "emptied", "changed", "gone"])
def test_a_torn_record_leaves_the_one_before_it(
    tmp_path: Path, n_records: int, damage: str
) -> None:
    file = tmp_path / "key"
    for k in range(n_records):
        write_record(file, b"value %d" % k * 100)
    newest = tmp_path / f"key.{(n_records - 1) % 2}"
    data = newest.read_bytes()
    if damage == "gone":
        newest.unlink()
    else:
        newest.write_bytes(
            {"cut": data[:300], "emptied": b"", "changed": data.replace(b"lue", b"lui")}[damage]
        )
    assert read_record(file) == b"value %d" % (n_records - 2) * 100
    write_record(file, b"after")
    assert read_record(file) == b"after"


def test_a_first_record_that_was_torn_is_none(tmp_path: Path) -> None:
    write_record(tmp_path / "key", b"value")
    slot = tmp_path / "key.0"
    slot.write_bytes(slot.read_bytes()[:60])
    assert read_record(tmp_path / "key") is None


def test_a_record_whose_slots_are_both_damaged_is_not_taken_for_none(tmp_path: Path) -> None:
    for value in (b"one", b"two"):
        write_record(tmp_path / "key", value)
    for slot in tmp_path.iterdir():
        slot.write_bytes(slot.read_bytes()[:60])
    with pytest.raises(RecordDamaged, match="is damaged"):
        read_record(tmp_path / "key")
    with pytest.raises(RecordDamaged):
        write_record(tmp_path / "key", b"three")


def test_a_shorter_record_does_not_end_with_the_longer_one_before(tmp_path: Path) -> None:
    for value in (b"long" * 9000, b"longer" * 9000, b"short", b"s"):
        write_record(tmp_path / "key", value)
        assert read_record(tmp_path / "key") == value


def test_records_are_for_their_owner_only(tmp_path: Path) -> None:
    write_record(tmp_path / "key", b"value")
    assert (tmp_path / "key.0").stat().st_mode & 0o777 == 0o600


def test_a_job_recalls_its_newest_record_of_a_key(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    memory = state.memory("job-1")
    for value in (b"older", b"newer"):
        memory.remember("key", value)
        assert state.memory("job-1").recall("key") == value
    assert state.memory("job-1").recall("other") is None
    state.close()
