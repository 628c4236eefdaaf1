"""What a silo's record forbids: another set, another round, the same values, too many views."""

from dataclasses import replace

import pytest

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.exchange import ExchangeKey, Silo
from hedgerow.boosting.sums.records import UnmaskingAt, UnmaskingRecord

A, B, C, D = Silo("a"), Silo("b"), Silo("c"), Silo("d")
SET, OTHER = (A, B, C), (A, B, D)
SUM = UnmaskingAt("sum/0", ExchangeKey(3), vector="values", whole=False, view="view")


def noted() -> UnmaskingRecord:
    record = UnmaskingRecord()
    assert record.forbids(SUM, SET) is None
    record.note(SUM, SET)
    return record


def test_a_sum_is_unmasked_over_one_set() -> None:
    record = noted()
    assert record.forbids(SUM, SET) is None
    assert record.forbids(SUM, OTHER) == "it was unmasked over another set already"
    assert (record.bound(SUM), record.bound(replace(SUM, key="sum/1"))) == (SET, ())
    assert record.bound(replace(SUM, at=ExchangeKey(4))) == ()


def test_the_same_values_are_unmasked_over_one_set_in_any_round() -> None:
    record, later = noted(), replace(SUM, at=ExchangeKey(4))
    assert record.forbids(later, SET) is None
    assert record.forbids(later, OTHER) == "the same values were unmasked over another set already"
    assert record.forbids(replace(later, vector="others"), OTHER) is None
    assert record.forbids(replace(later, vector=None), OTHER) is None  # zeros tell nothing


def test_the_same_noise_is_unmasked_over_one_set_only() -> None:
    """Sets that differ by three silos are no secret but of noise, which the difference lacks."""
    nine, twelve = tuple(map(Silo, "abcdefghi")), tuple(map(Silo, "abcdefghijkl"))
    record, noised = UnmaskingRecord(), replace(SUM, noised=True)
    record.note(SUM, nine)
    assert record.forbids(SUM, twelve) is None
    assert record.forbids(noised, nine) is None
    assert record.forbids(noised, twelve) == (
        "the same values were unmasked over another set already"
    )
    assert record.forbids(replace(noised, vector="with other noise"), twelve) is None


def test_of_many_vectors_those_used_last_are_remembered() -> None:
    record = noted()
    for k in range(255):
        record.note(replace(SUM, vector=f"values {k}"), SET)
    record.note(SUM, SET)  # used again: the oldest is another one now
    record.note(replace(SUM, vector="one more"), SET)
    assert len(record.vectors) == 256
    assert "values 0" not in record.vectors
    assert {"values", "values 1", "one more"} <= record.vectors.keys()


def test_a_sum_of_the_whole_has_the_set_of_the_sum_before_it() -> None:
    record, whole = noted(), UnmaskingAt("whole", ExchangeKey(3), None, whole=True)
    assert record.forbids(whole, SET) is None
    assert record.forbids(whole, OTHER) == "its set differs from the set of the sums before it"
    assert UnmaskingRecord().forbids(whole, OTHER) is None


def test_a_round_that_is_over_stays_closed() -> None:
    record = noted()
    earlier = replace(SUM, at=ExchangeKey(2), key="another", vector=None)
    why = "round 2 is over, round 3 was unmasked; submit the job again"
    assert record.forbids(earlier, SET) == why


def test_a_sum_is_asked_for_with_three_views_in_a_round() -> None:
    record = noted()
    for view in ("view", "second", "second", "third"):
        assert record.forbids(replace(SUM, view=view), SET) is None
        record.note(replace(SUM, view=view), SET)
    fourth = replace(SUM, view="fourth")
    assert record.forbids(fourth, SET) == "it was asked for with 3 other views already"
    assert record.forbids(replace(SUM, view="third"), SET) is None
    assert record.forbids(replace(fourth, key="sum/1"), SET) is None
    assert record.forbids(replace(fourth, at=ExchangeKey(4)), SET) is None


def test_a_record_comes_back_from_its_bytes_and_other_bytes_are_refused() -> None:
    record = noted()
    record.note(replace(SUM, at=ExchangeKey(4), vector="others", view="second"), OTHER)
    again = UnmaskingRecord.parse(record.encode())
    assert again == record
    assert (again.round, again.sets, again.last) == (4, {"sum/0": OTHER}, OTHER)
    assert again.vectors == {"values": SET, "others": OTHER}
    assert again.views == {"sum/0": ["second"]}
    assert UnmaskingRecord.parse(None) == UnmaskingRecord()
    for bad in (
        b"{}",
        b"null",
        record.encode()[:-1],
        record.encode().replace(b'"round":4', b'"round":"4"'),
    ):
        with pytest.raises(DataError, match=r"a record of what was unmasked|round"):
            UnmaskingRecord.parse(bad)
