from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import InvalidJob, OfferRejected, PlacePassed, QuorumLost, SumRefused
from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Silo
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.groups import OpenedSets
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import MaskedVector, SumParameters, SumTotal, sum_steps
from hedgerow.crypto.masking.fixed_point import residue_dtype
from tests.boosting.sums.federation_of_sums import Federation, SumsEnded, names
from tests.federation.memory import Fault, MemoryLink, SiloKilled

N = 33
STATE = bytes(32)


def vector(silo: str, round_: int, ring_bits: int = 64) -> np.ndarray:
    rng = np.random.default_rng([round_, *silo.encode()])
    return rng.integers(0, 1 << ring_bits, N, dtype=np.uint64).astype(residue_dtype(ring_bits))


def expected(silos: tuple[Silo, ...], round_: int, ring_bits: int = 64) -> np.ndarray:
    total = np.zeros(N, dtype=residue_dtype(ring_bits))
    for silo in silos:
        total += vector(silo, round_, ring_bits)
    return total & np.uint64((1 << 48) - 1) if ring_bits == 48 else total


def run(
    federation: Federation,
    rounds: int = 1,
    ring_bits: int = 64,
    first: int = 0,
    setups: tuple[int, ...] | None = None,
    **options: Any,
) -> SumsEnded:
    setups = (first,) if setups is None else setups

    async def coordinate(sums: CoordinatorSums, hub: Any) -> list[Any]:
        outcomes = []
        for round_ in range(first, first + rounds):
            if round_ in setups:
                await sums.setup(ExchangeKey(round_))
            outcomes.append(await sums.total(ExchangeKey(round_), N, ring_bits=ring_bits))
        return outcomes

    def participate(sums: SiloSums, link: Any) -> list[SumTotal]:
        totals = []
        for round_ in range(first, first + rounds):
            if round_ in setups:
                sums.setup(ExchangeKey(round_))
            values = vector(link.silo, round_, ring_bits)
            totals.append(sums.total(ExchangeKey(round_), values, state=STATE, ring_bits=ring_bits))
        return totals

    return federation.run(coordinate, participate, **options)


MODES = {
    "plain": SumParameters(secure=False),
    "recovering": SumParameters(batch=2),
    "single": SumParameters(dropout_recovery=False),
    "blind": SumParameters(batch=2, blind_coordinator=True),
    "blind single": SumParameters(dropout_recovery=False, blind_coordinator=True),
}


@pytest.mark.parametrize("ring_bits", [32, 48, 64])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_plain_sum_exactly(mode: str, ring_bits: int) -> None:
    silos = names(4)
    federation = Federation(silos, MODES[mode], through_wire=True)
    ended = run(federation, rounds=3, ring_bits=ring_bits)
    assert ended.error is None, ended.error
    assert not ended.errors
    for round_ in range(3):
        total = expected(silos, round_, ring_bits)
        outcome = ended.result[round_]
        assert outcome.present == silos
        if "blind" in mode:
            assert not np.array_equal(outcome.total, total)
        else:
            np.testing.assert_array_equal(outcome.total, total)
        for silo in silos:
            np.testing.assert_array_equal(ended.silos[silo][round_].values, total)


SEVEN = names(7)  # threshold 5: two may be lost
RECOVERING = SumParameters(batch=2)
LOST = SEVEN[3]


def check_totals(ended: SumsEnded, sets: list[tuple[Silo, ...]], first: int = 0) -> None:
    """The coordinator and every silo that reached the end have the sums over ``sets``."""
    assert ended.error is None, ended.error
    assert [outcome.present for outcome in ended.result] == sets
    for at, (outcome, present) in enumerate(zip(ended.result, sets, strict=True)):
        np.testing.assert_array_equal(outcome.total, expected(present, first + at))
    for silo in sets[-1]:
        if silo in ended.errors:
            assert isinstance(ended.errors[silo], SiloKilled)
            continue
        for at, total in enumerate(ended.silos[silo]):
            np.testing.assert_array_equal(total.values, ended.result[at].total)


@pytest.mark.parametrize(
    ("step", "when", "counted"),
    [
        ("sum-keys", "before", False),
        ("sum-keys", "after", False),
        ("sum-shares", "before", False),
        ("sum-shares", "after", False),
        ("sum-masked", "before", False),
        ("sum-masked", "after", True),
        ("sum-unmask", "before", True),
        ("sum-unmask", "after", True),
    ],
)
def test_a_silo_lost_at_any_exchange_leaves_an_exact_sum(
    step: str, when: str, counted: bool
) -> None:
    fault = Fault(LOST, step, round=0, when=when)
    ended = run(Federation(SEVEN, RECOVERING), rounds=3, faults=(fault,))
    rest = tuple(silo for silo in SEVEN if silo != LOST)
    check_totals(ended, [SEVEN if counted else rest, rest, rest])
    assert list(ended.errors) == [LOST]


@pytest.mark.parametrize("step", ["sum-agree", "sum-seeds"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_second_silo_lost_during_recovery_leaves_an_exact_sum(step: str, when: str) -> None:
    faults = (
        Fault(SEVEN[0], "sum-masked", round=0),
        Fault(LOST, step, round=0, when=when),
    )
    ended = run(Federation(SEVEN, RECOVERING, through_wire=True), rounds=2, faults=faults)
    rest = tuple(silo for silo in SEVEN if silo not in (LOST, SEVEN[0]))
    # Once its pair seeds are in, a silo is counted: the others hold the shares of its mask.
    counted = step == "sum-seeds" and when == "after"
    first = tuple(s for s in SEVEN if s != SEVEN[0]) if counted else rest
    check_totals(ended, [first, rest])


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    faults=st.lists(
        st.builds(
            Fault,
            silo=st.sampled_from(SEVEN[:2]),
            step=st.sampled_from(
                ["sum-shares", "sum-masked", "sum-agree", "sum-seeds", "sum-unmask"]
            ),
            round=st.integers(0, 3),
            when=st.sampled_from(["before", "after"]),
        ),
        max_size=4,
    )
)
def test_whenever_two_silos_are_lost_every_sum_is_exact_over_its_set(faults: list[Fault]) -> None:
    ended = run(Federation(SEVEN, RECOVERING), rounds=4, faults=tuple(faults))
    check_totals(ended, [outcome.present for outcome in ended.result or []])
    assert len(ended.result) == 4
    for earlier, later in pairwise(ended.result):
        assert set(later.present) <= set(earlier.present)
    assert set(SEVEN[2:]) <= set(ended.result[-1].present)


def test_recovery_takes_its_extra_exchanges_only_when_somebody_is_lost() -> None:
    calm = run(Federation(SEVEN, RECOVERING), rounds=3)
    assert calm.exchanges(SEVEN[0]) == [
        "sum-keys",
        *("sum-shares", "sum-masked", "sum-unmask"),
        *("sum-masked", "sum-unmask"),
        *("sum-shares", "sum-masked", "sum-unmask"),
    ]
    fault = Fault(LOST, "sum-masked", round=1)
    rough = run(Federation(SEVEN, RECOVERING), rounds=3, faults=(fault,))
    assert rough.exchanges(SEVEN[0])[4:8] == [
        "sum-masked",
        "sum-agree",
        "sum-seeds",
        "sum-unmask",
    ]


def test_below_the_threshold_the_job_ends_with_the_names_of_the_lost() -> None:
    lost = SEVEN[:3]
    faults = tuple(Fault(silo, "sum-masked", round=0) for silo in lost)
    ended = run(Federation(SEVEN, RECOVERING), faults=faults)
    assert isinstance(ended.error, QuorumLost)
    for silo in lost:
        assert silo in str(ended.error)
    assert "needs 5 silos" in str(ended.error)
    revealed = {"sum-unmask", "sum-seeds"} & {name for _, name in ended.traffic}
    assert not revealed


def test_too_many_lost_during_recovery_end_the_job_and_nothing_is_unmasked() -> None:
    faults = (
        *(Fault(silo, "sum-masked", round=0) for silo in SEVEN[:2]),
        Fault(LOST, "sum-agree", round=0),
    )
    ended = run(Federation(SEVEN, RECOVERING), faults=faults)
    assert isinstance(ended.error, QuorumLost)
    assert LOST in str(ended.error)
    assert "sum-unmask" not in {name for _, name in ended.traffic}


@pytest.mark.parametrize("mode", ["recovering", "single"])
def test_two_silos_are_too_few_to_hide_behind(mode: str) -> None:
    ended = run(Federation(names(2), MODES[mode]))
    assert isinstance(ended.error, QuorumLost)


@pytest.mark.parametrize(
    ("threshold", "kind", "says"),
    [
        (8, QuorumLost, "threshold 8: .* 7 are present: "),
        (3, InvalidJob, "threshold 3: of 7 silos .* expected 4 to 7"),
    ],
)
def test_a_threshold_that_does_not_fit_the_silos_ends_the_job_and_says_so(
    threshold: int, kind: type[Exception], says: str
) -> None:
    ended = run(Federation(SEVEN, replace(RECOVERING, threshold=threshold)))
    assert isinstance(ended.error, kind)
    assert re.search(says, str(ended.error))


def test_without_recovery_a_lost_silo_ends_the_job_with_its_name() -> None:
    fault = Fault(LOST, "sum-single", round=1)
    ended = run(Federation(SEVEN, MODES["single"]), rounds=2, faults=(fault,))
    assert isinstance(ended.error, QuorumLost)
    assert LOST in str(ended.error)


def test_plain_sums_go_on_without_a_lost_silo() -> None:
    fault = Fault(LOST, "sum-plain", round=1)
    ended = run(Federation(SEVEN, MODES["plain"]), rounds=3, faults=(fault,))
    rest = tuple(silo for silo in SEVEN if silo != LOST)
    check_totals(ended, [SEVEN, rest, rest])


TREE = sum_steps("tree", Call.HISTOGRAMS, Call.SPLITS, SumTotal, "histograms", Discloses.COUNTS)


def grow(
    federation: Federation, levels: int, trees: int = 2, ring_bits: int = 64, **options: Any
) -> tuple[SumsEnded, list[tuple[int, int, bool]]]:
    """Grow ``trees`` of whole sums; a level whose sum is abandoned ends its tree."""
    path: list[tuple[int, int, bool]] = []
    nothing = np.zeros(0, dtype=residue_dtype(ring_bits))

    async def coordinate(sums: CoordinatorSums, hub: Any) -> list[Any]:
        outcomes = []
        await sums.setup(ExchangeKey(0))
        for tree in range(trees):
            for level in range(levels):
                at = ExchangeKey(tree, level)
                outcome = await sums.sum(TREE, at, N, ring=ring_bits, whole=level > 0)
                path.append((tree, level, outcome.total is not None))
                outcomes.append(outcome)
                total = nothing if outcome.total is None else outcome.total
                sums.answer(TREE, outcome, SumTotal(total, ring_bits, outcome.present))
                if outcome.total is None:
                    break
        return outcomes

    def participate(sums: SiloSums, link: Any) -> int:
        sums.setup(ExchangeKey(0))
        count = 0
        for tree in range(trees):
            for level in range(levels):
                values = vector(link.silo, 10 * tree + level, ring_bits)
                reply = sums.sum(
                    TREE,
                    ExchangeKey(tree, level),
                    values,
                    state=STATE,
                    ring=ring_bits,
                    opens_tree=level == 0,
                    whole=level > 0,
                )
                count += 1
                if not len(reply.values):
                    break
        return count

    return federation.run(coordinate, participate, **options), path


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_silo_lost_inside_a_tree_closes_it_and_the_next_tree_starts_without_it(
    secure: bool, when: str
) -> None:
    parameters = SumParameters(secure=secure, batch=2)
    step = "tree-single" if secure else "tree-plain"
    fault = Fault(LOST, step, round=0, level=1, when=when)
    ended, path = grow(Federation(SEVEN, parameters), 3, faults=(fault,))
    assert ended.error is None, ended.error
    rest = tuple(silo for silo in SEVEN if silo != LOST)
    last = 1 if when == "before" else 2  # its vector of level 1 was in
    assert path == [
        *((0, level, level < last) for level in range(last + 1)),
        *((1, level, True) for level in range(3)),
    ]
    for (tree, level, unmasked), outcome in zip(path, ended.result, strict=True):
        if unmasked:
            present = SEVEN if tree == 0 else rest
            assert outcome.present == present
            np.testing.assert_array_equal(outcome.total, expected(present, 10 * tree + level))
    assert {ended.silos[silo] for silo in rest} == {len(path)}


def test_sums_inside_a_tree_have_the_ring_of_the_tree() -> None:
    ended, _ = grow(Federation(SEVEN, RECOVERING), 2, trees=1, ring_bits=32)
    assert ended.error is None, ended.error
    for level, outcome in enumerate(ended.result):
        np.testing.assert_array_equal(outcome.total, expected(SEVEN, level, 32))


def test_a_silo_that_comes_back_inside_a_tree_is_not_in_its_sums() -> None:
    rest = tuple(silo for silo in SEVEN if silo != LOST)
    inside = ExchangeKey(0, 1)

    async def coordinate(sums: CoordinatorSums, hub: Any) -> Any:
        await sums.setup(ExchangeKey(0))
        hub.drop(LOST, "away for a level")
        opened = await sums.sum(TREE, ExchangeKey(0), N)
        sums.answer(TREE, opened, SumTotal(opened.total, 64, opened.present))
        hub.join(LOST)
        while hub.n_offered("tree-single", inside) < len(SEVEN):  # noqa: ASYNC110
            await asyncio.sleep(0)
        outcome = await sums.sum(TREE, inside, N, whole=True)
        sums.answer(TREE, outcome, SumTotal(outcome.total, 64, outcome.present))
        return outcome

    def participate(sums: SiloSums, link: MemoryLink) -> None:
        sums.setup(ExchangeKey(0))
        if link.silo == LOST:
            link.exchange(
                TREE.single, inside, MaskedVector(vector(LOST, 1), 64, b"", b"", (), STATE)
            )
        for level in range(2):
            values = vector(link.silo, level)
            sums.sum(
                TREE,
                ExchangeKey(0, level),
                values,
                state=STATE,
                opens_tree=not level,
                whole=level > 0,
            )

    ended = Federation(SEVEN, RECOVERING).run(coordinate, participate)
    assert ended.error is None, ended.error
    assert ended.result.present == rest
    np.testing.assert_array_equal(ended.result.total, expected(rest, 1))
    assert list(ended.errors) == [LOST]
    assert isinstance(ended.errors[LOST], PlacePassed)


def test_a_silo_that_comes_back_takes_part_from_the_next_setup() -> None:
    """In the meantime its sums raise that the place has passed."""
    federation = Federation(SEVEN, RECOVERING)
    rest = tuple(silo for silo in SEVEN if silo != LOST)

    async def coordinate(sums: CoordinatorSums, hub: Any) -> list[Any]:
        await sums.setup(ExchangeKey(0))
        first = await sums.total(ExchangeKey(0), N)
        hub.drop(LOST, "its lease expired")
        second = await sums.total(ExchangeKey(1), N)
        hub.join(LOST)
        assert sums.joining == (LOST,)
        await sums.setup(ExchangeKey(2))
        return [first, second, await sums.total(ExchangeKey(2), N)]

    def participate(sums: SiloSums, link: Any) -> list[Any]:
        totals = []
        for round_ in range(3):
            if round_ in (0, 2):
                sums.setup(ExchangeKey(round_))
            if round_ == 1 and link.silo == LOST:
                totals.append(None)
                continue
            totals.append(sums.total(ExchangeKey(round_), vector(link.silo, round_), state=STATE))
        return totals

    ended = federation.run(coordinate, participate)
    assert not ended.errors
    assert [outcome.present for outcome in ended.result] == [SEVEN, rest, SEVEN]
    np.testing.assert_array_equal(ended.silos[LOST][2].values, expected(SEVEN, 2))


def test_a_silo_that_was_left_out_is_told_that_the_place_has_passed() -> None:
    federation = Federation(SEVEN, RECOVERING)
    gate = threading.Event()

    async def coordinate(sums: CoordinatorSums, hub: Any) -> Any:
        await sums.setup(ExchangeKey(0))
        await sums.total(ExchangeKey(0), N)
        hub.drop(LOST, "silent")
        outcome = await sums.total(ExchangeKey(1), N)
        gate.set()
        return outcome

    def participate(sums: SiloSums, link: Any) -> None:
        sums.setup(ExchangeKey(0))
        sums.total(ExchangeKey(0), vector(link.silo, 0), state=STATE)
        if link.silo == LOST:
            assert gate.wait(200)
        sums.total(ExchangeKey(1), vector(link.silo, 1), state=STATE)

    ended = federation.run(coordinate, participate)
    assert ended.error is None
    assert list(ended.errors) == [LOST]
    assert isinstance(ended.errors[LOST], PlacePassed)


def test_malformed_vectors_are_rejected_and_their_silo_is_lost() -> None:
    federation = Federation(SEVEN, RECOVERING)

    async def coordinate(sums: CoordinatorSums, hub: Any) -> Any:
        await sums.setup(ExchangeKey(0))
        return await sums.total(ExchangeKey(0), N)

    def participate(sums: SiloSums, link: Any) -> None:
        sums.setup(ExchangeKey(0))
        values = vector(link.silo, 0)
        sums.total(ExchangeKey(0), values[:-1] if link.silo == LOST else values, state=STATE)

    ended = federation.run(coordinate, participate)
    rest = tuple(silo for silo in SEVEN if silo != LOST)
    assert ended.error is None
    np.testing.assert_array_equal(ended.result.total, expected(rest, 0))
    assert isinstance(ended.errors[LOST], OfferRejected)


def test_sums_before_a_setup_and_without_keys_are_refused() -> None:
    federation = Federation(names(3), RECOVERING)
    ended = run(federation, setups=())
    assert all(isinstance(error, SumRefused) for error in ended.errors.values())
    with pytest.raises(ValueError, match="vault and an identity"):
        SiloSums(
            MemoryLink(Silo("a"), None, None),  # type: ignore[arg-type]
            None,
            None,
            silo=Silo("a"),
            roster=(Silo("a"),),
            job_id="job",
            job_digest=b"job",
            attempt=1,
            parameters=RECOVERING,
            opened=OpenedSets(()),
        )


def test_a_sum_in_the_clear_is_over_the_silos_that_were_asked() -> None:
    silos = names(4)
    *asked, back = silos

    async def coordinate(sums: CoordinatorSums, hub: Any) -> list[tuple[Silo, ...]]:
        await sums.setup(ExchangeKey(0))
        hub.drop(back, "away for a round")
        first = await sums.total(ExchangeKey(0), 1)
        hub.join(back)
        while hub.n_offered("sum-plain", ExchangeKey(1)) < len(silos):  # noqa: ASYNC110
            await asyncio.sleep(0)
        second = await sums.total(ExchangeKey(1), 1)
        assert second.total is not None
        assert second.total.tolist() == [len(asked)]
        return [first.present, second.present]

    def participate(sums: SiloSums, link: MemoryLink) -> None:
        sums.setup(ExchangeKey(0))
        one = np.ones(1, dtype=np.uint64)
        for round_ in (0, 1) if link.silo != back else (1,):
            sums.total(ExchangeKey(round_), one, state=b"state")

    ended = Federation(silos, MODES["plain"]).run(coordinate, participate)
    assert ended.result == [tuple(asked), tuple(asked)]
    assert list(ended.errors) == [back]
    assert isinstance(ended.errors[back], PlacePassed)
