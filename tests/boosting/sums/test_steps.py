"""What the exchanges of a sum carry and disclose: a policy reads nothing else."""

from dataclasses import replace

import pytest

from hedgerow.boosting.exchange import Call, Discloses, Silo
from hedgerow.boosting.sums import steps
from hedgerow.boosting.sums.floats import float_sum
from hedgerow.boosting.sums.steps import (
    KeyOffer,
    SumParameters,
    SumTotal,
    key_statement,
    sum_steps,
)
from hedgerow.crypto.masking.key_agreement import KEY_BYTES


def test_a_sum_masks_what_it_is_of_and_only_the_plain_vector_discloses_it() -> None:
    made = sum_steps("s", Call.TREES, Call.KEYS, SumTotal, "row counts", Discloses.SCORES)
    hidden = "only the sum over all silos: row counts"
    rows = {
        "shares": (Call.SHARES, steps.SealedShares, steps.SealedShares, Discloses.KEYS),
        "plain": (Call.TREES, steps.PlainVector, SumTotal, Discloses.SCORES),
        "single": (Call.TREES, steps.MaskedVector, SumTotal, Discloses.MASKED),
        "masked": (Call.TREES, steps.MaskedVector, steps.PresentSet, Discloses.MASKED),
        "agree": (Call.SIGNATURES, steps.SetSignature, steps.PresentSet, Discloses.KEYS),
        "seeds": (Call.SIGNATURES, steps.PairSeeds, steps.PresentSet, Discloses.KEYS),
        "unmask": (Call.KEYS, steps.Unmasking, SumTotal, Discloses.MASKED),
    }
    for name, row in rows.items():
        step = getattr(made, name)
        assert (step.call, step.offer, step.reply, step.discloses) == row
        assert step.name == f"s-{name}"
    assert made.name == "s"
    assert made.single.reveals == made.masked.reveals == hidden
    assert made.plain.reveals == "to the coordinator: row counts"
    assert made.unmask.reveals == "the sum over the agreed set: row counts"
    assert made.shares.reveals == "nothing: sealed boxes"
    assert made.agree.reveals == "the set of silos that it agrees to"
    assert made.seeds.reveals == "masks shared with lost silos, of one sum"


def test_a_float_sum_finds_its_bound_by_a_masked_sum() -> None:
    made = float_sum("f", Call.TREES, int, str, "gains", Discloses.WEIGHTS, 32)
    assert (made.plain.name, made.plain.offer, made.plain.reply) == ("f", int, str)
    assert (made.plain.call, made.plain.discloses) == (Call.TREES, Discloses.WEIGHTS)
    assert made.bound.masked.call is Call.SUMS
    assert made.bound.masked.discloses is Discloses.MASKED
    assert made.secure == sum_steps(
        "f-sum", Call.TREES, Call.TREES, str, "gains", Discloses.WEIGHTS
    )
    assert (made.name, made.ring_bits) == ("f", 32)


@pytest.mark.parametrize(
    ("recovery", "blind", "due"),
    [(True, False, [4, None, None, None, 4]), (False, True, [0, None, None, None, None]),
     (False, False, [None] * 5), (True, True, [4, None, None, None, 4])],
)  # fmt: skip
def test_self_masks_are_shared_for_a_batch_of_sums(
    recovery: bool, blind: bool, due: list[int | None]
) -> None:
    made = SumParameters(dropout_recovery=recovery, blind_coordinator=blind, batch=4)
    assert [made.shares_due(number) for number in range(5)] == due


def test_a_sum_has_the_silos_of_its_threshold_and_never_fewer_than_three() -> None:
    sizes = (3, 4, 5, 6, 100)
    assert [SumParameters().threshold_of(n) for n in sizes] == [3, 3, 4, 5, 67]
    assert [SumParameters().least_of(n) for n in sizes] == [3, 3, 4, 5, 67]
    assert [SumParameters(threshold=4, least_silos=1).least_of(n) for n in (3, 6)] == [4, 4]
    assert SumParameters(dropout_recovery=False, least_silos=1).least_of(100) == 3
    assert SumParameters(dropout_recovery=False, least_silos=7).least_of(100) == 7
    assert SumParameters(secure=False, least_silos=1).least_of(100) == 1


def test_what_a_silo_signs_of_its_key_says_all_that_the_sums_depend_on() -> None:
    session, roster, given = "job/1/0.0.0", (Silo("a"), Silo("b")), SumParameters()
    changed = [
        replace(given, threshold=2), replace(given, batch=2), replace(given, least_silos=4),
        replace(given, dropout_recovery=False), replace(given, blind_coordinator=True),
    ]  # fmt: skip
    groups = (roster,)
    offer = KeyOffer(bytes(KEY_BYTES), b"a certificate")
    others = [
        replace(offer, public_key=bytes([1] * KEY_BYTES)), replace(offer, companions=roster),
        replace(offer, empty=True), replace(offer, few=True), replace(offer, changed=("a",)),
        replace(offer, changed=("a", "b")), replace(offer, differing=("a",)),
        replace(offer, few=True, changed=("a",)),
    ]  # fmt: skip
    statements = [
        *(
            key_statement(session, roster, groups, one, roster[0], offer)
            for one in (given, *changed)
        ),
        *(key_statement(session, roster, groups, given, roster[0], one) for one in others),
        key_statement("job/2/0.0.0", roster, groups, given, roster[0], offer),
        key_statement(session, roster[:1], groups, given, roster[0], offer),
        key_statement(session, roster, (roster[:1], roster[1:]), given, roster[0], offer),
        key_statement(session, roster, groups, given, roster[1], offer),
    ]
    assert len(set(statements)) == len(statements)
    with pytest.raises(ValueError, match="at most 128 earlier jobs, received 129"):
        replace(offer, changed=("a",) * 100, differing=("b",) * 29)
