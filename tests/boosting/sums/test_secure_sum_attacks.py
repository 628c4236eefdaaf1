"""A coordinator that cheats, forgets or restarts does not get two sums that differ by a silo."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.errors import (
    PlacePassed,
    QuorumLost,
    SignatureInvalid,
    SumRefused,
)
from hedgerow.boosting.exchange import ExchangeKey, Silo
from hedgerow.boosting.sums import coordinator as coordinator_sums
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.groups import groups_of as deal
from hedgerow.boosting.sums.requests import begun_set
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import (
    KEYS,
    SUM,
    KeyRoster,
    MaskedVector,
    PresentSet,
    SealedShares,
    SumParameters,
    SumTotal,
)
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.boosting.sums.federation_of_sums import Federation, SumsEnded, WatchedLink, names
from tests.boosting.sums.test_secure_sum import STATE, N, expected, run, vector
from tests.federation.memory import Fault

SEVEN = names(7)
VICTIM = SEVEN[0]
OTHERS = SEVEN[1:]
THRESHOLD = 5
AT = ExchangeKey(0)


def take_part(sums: SiloSums, link: Any) -> Any:
    sums.setup(AT)
    return sums.total(AT, vector(link.silo, 0), state=STATE)


async def upload(sums: CoordinatorSums, hub: Any) -> dict[Silo, Any]:
    """Run the protocol honestly up to the masked vectors of all seven."""
    await sums.setup(AT)
    await sums._deal(SUM, AT)
    offers = await hub.collect(SUM.masked, AT)
    assert tuple(offers) == SEVEN
    return dict(offers)


def signatures(offers: dict[Silo, Any]) -> dict[Silo, bytes]:
    return {silo: offer.signature for silo, offer in offers.items()}


class Everything:
    """All that a cheating coordinator was shown of seeds and shares."""

    def __init__(self) -> None:
        self.shares: dict[Silo, set[Silo]] = {silo: set() for silo in SEVEN}
        self.seeds: dict[Silo, set[Silo]] = {silo: set() for silo in SEVEN}

    async def gather(self, hub: Any, place: ExchangeKey, silos: tuple[Silo, ...] = SEVEN) -> None:
        """Take what silos reveal at a place; those that refuse are dropped."""
        unmasked = await hub.collect(SUM.unmask, place, silos=silos, quorum=0)
        for silo, offer in unmasked.items():
            for owner in offer.shares:
                self.shares[owner].add(silo)

    def opens_without_victim(self) -> bool:
        """Whether the sum over the others can be told from these: the victim's vector then too."""
        lost_seeds = all(silo in self.seeds[VICTIM] for silo in OTHERS)
        return lost_seeds and all(len(self.shares[silo]) >= THRESHOLD for silo in OTHERS)

    def opens_full(self) -> bool:
        return all(len(self.shares[silo]) >= THRESHOLD for silo in SEVEN)


@pytest.mark.parametrize("n_full", [2, 4, 5, 6])
def test_silos_that_are_shown_different_sets_open_one_sum_at_most(n_full: int) -> None:
    """Some are told that all are there, the others that the victim is lost."""
    full, fooled = SEVEN[:n_full], SEVEN[n_full:]
    seen = Everything()

    async def coordinate(sums: CoordinatorSums, hub: Any) -> None:
        offers = await upload(sums, hub)
        honest = PresentSet(SEVEN, signatures(offers))
        lie = PresentSet(OTHERS, {})
        hub.answer(SUM.masked, AT, dict.fromkeys(full, honest) | dict.fromkeys(fooled, lie))
        signed = await hub.collect(SUM.agree, AT, silos=fooled)
        gained = {silo: signed[silo].signature for silo in fooled}
        mixed = signatures(offers) | gained  # the others' signatures are over another set
        hub.answer(SUM.agree, AT, dict.fromkeys(fooled, PresentSet(OTHERS, mixed)))
        seeds = await hub.collect(SUM.seeds, ExchangeKey(0, 0, 1), silos=fooled, quorum=0)
        for silo, offer in seeds.items():
            for peer in offer.seeds:
                seen.seeds[peer].add(silo)
        hub.answer(SUM.seeds, ExchangeKey(0, 0, 1), dict.fromkeys(seeds, PresentSet(OTHERS, {})))
        await seen.gather(hub, AT)

    ended = Federation(SEVEN, linger_seconds=0.0).run(coordinate, take_part)
    assert ended.error is None
    for silo in fooled:
        if len(fooled) < THRESHOLD:
            assert isinstance(ended.errors[silo], SignatureInvalid), silo
    assert seen.opens_full() == (n_full >= THRESHOLD)
    assert not (seen.opens_full() and seen.opens_without_victim())
    for silo in SEVEN:
        assert not (silo in seen.seeds[VICTIM] and silo in seen.shares[VICTIM])


def test_a_laggard_that_is_handed_the_others_signatures_reveals_for_their_set_only() -> None:
    seen = Everything()
    laggard = SEVEN[6]

    async def coordinate(sums: CoordinatorSums, hub: Any) -> None:
        offers = await upload(sums, hub)
        assert all(signatures(offers).values())
        signers = OTHERS[:-1]
        hub.answer(SUM.masked, AT, dict.fromkeys(signers, PresentSet(OTHERS, {})))
        signed = await hub.collect(SUM.agree, AT, silos=signers)
        agreed = PresentSet(OTHERS, {silo: signed[silo].signature for silo in signers})
        hub.answer(SUM.agree, AT, dict.fromkeys(signers, agreed))
        hub.answer(SUM.masked, AT, {laggard: agreed})
        first = await hub.collect(SUM.seeds, AT, silos=(laggard,))
        rest = await hub.collect(SUM.seeds, ExchangeKey(0, 0, 1), silos=signers)
        for silo, offer in {**first, **rest}.items():
            for peer in offer.seeds:
                seen.seeds[peer].add(silo)
        hub.answer(SUM.seeds, AT, {laggard: PresentSet(OTHERS, {})})
        hub.answer(SUM.seeds, ExchangeKey(0, 0, 1), dict.fromkeys(signers, PresentSet(OTHERS, {})))
        await seen.gather(hub, AT, OTHERS)

    Federation(SEVEN, linger_seconds=0.0).run(coordinate, take_part)
    assert seen.opens_without_victim()
    assert not seen.shares[VICTIM]


def test_a_set_without_enough_signatures_is_not_unmasked() -> None:
    async def coordinate(sums: CoordinatorSums, hub: Any) -> Any:
        offers = await upload(sums, hub)
        few = dict(list(signatures(offers).items())[: THRESHOLD - 1])
        hub.answer(SUM.masked, AT, dict.fromkeys(SEVEN, PresentSet(SEVEN, few)))
        return await hub.collect(SUM.unmask, AT, quorum=0)

    ended = Federation(SEVEN, linger_seconds=0.0).run(coordinate, take_part)
    assert ended.result == {}
    assert all(isinstance(ended.errors[silo], SignatureInvalid) for silo in SEVEN)


@pytest.mark.parametrize("present", [SEVEN[:4], (*SEVEN[:6], Silo("stranger"))])
def test_sets_below_the_threshold_or_with_strangers_are_not_signed(
    present: tuple[Silo, ...],
) -> None:
    async def coordinate(sums: CoordinatorSums, hub: Any) -> Any:
        await upload(sums, hub)
        hub.answer(SUM.masked, AT, dict.fromkeys(present[:4], PresentSet(present, {})))
        return await hub.collect(SUM.agree, AT, silos=present[:4], quorum=0)

    ended = Federation(SEVEN, linger_seconds=0.0).run(coordinate, take_part)
    assert ended.result == {}
    for silo in present[:4]:
        assert isinstance(ended.errors[silo], SumRefused)


def two_attempts(
    federation: Federation, second: tuple[Silo, ...], round_: int = 0
) -> tuple[SumsEnded, SumsEnded]:
    """Sum over all seven; then, as after a restart, over ``second``."""
    first = run(federation)
    assert first.error is None
    np.testing.assert_array_equal(first.result[0].total, expected(SEVEN, 0))
    federation = replace(federation, silos=SEVEN)
    return first, run(federation, attempt=2, first=round_, present=second)


def test_a_restarted_coordinator_gets_the_same_sum_again_and_no_other() -> None:
    federation = Federation(SEVEN)
    _, again = two_attempts(federation, SEVEN)
    assert again.error is None
    np.testing.assert_array_equal(again.result[0].total, expected(SEVEN, 0))
    _, without = two_attempts(Federation(SEVEN), OTHERS)
    assert isinstance(without.error, QuorumLost)
    assert VICTIM in str(without.error)
    assert "sum-unmask" not in {name for _, name in without.traffic}


def test_a_coordinator_that_asks_for_another_set_after_a_restart_gets_no_signature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    federation = Federation(SEVEN)
    assert run(federation).error is None
    monkeypatch.setattr(coordinator_sums, "begun_set", lambda *_: ())
    ended = federation.run(honest, take_part, attempt=2, present=OTHERS)
    assert isinstance(ended.error, QuorumLost)
    assert all(isinstance(ended.errors[silo], SumRefused) for silo in OTHERS)
    assert "unmasked over another set" in str(ended.errors[OTHERS[0]])
    assert "sum-unmask" not in {name for _, name in ended.traffic}


def test_without_recovery_a_second_set_is_not_even_uploaded() -> None:
    federation = Federation(SEVEN, SumParameters(dropout_recovery=False))
    _, without = two_attempts(federation, OTHERS)
    assert all(isinstance(without.errors[silo], SumRefused) for silo in OTHERS)
    assert "sum-single" not in {name for _, name in without.traffic}


def test_rounds_that_are_over_are_not_summed_again() -> None:
    federation = Federation(SEVEN)
    assert run(federation, rounds=2).error is None
    again = run(federation, attempt=2)
    assert isinstance(again.error, QuorumLost)
    assert "round 0 is over" in str(again.errors[VICTIM])


def test_the_same_values_are_not_unmasked_at_a_later_place_without_a_silo() -> None:
    """As when a tree is closed without a split, so that gradients stay the same."""

    async def coordinate(sums: CoordinatorSums, hub: Any) -> Any:
        await sums.setup(AT)
        await sums.total(AT, N)
        hub.drop(VICTIM, "said to be lost")
        return await sums.total(ExchangeKey(1), N)

    def participate(sums: SiloSums, link: Any) -> None:
        sums.setup(AT)
        for round_ in range(1 if link.silo == VICTIM else 2):
            sums.total(ExchangeKey(round_), vector(link.silo, 0), state=STATE)

    ended = Federation(SEVEN).run(coordinate, participate)
    assert isinstance(ended.error, QuorumLost)
    for silo in OTHERS:
        assert isinstance(ended.errors[silo], SumRefused)
        assert "same values" in str(ended.errors[silo])


def test_a_sum_over_fewer_is_summed_again_over_the_same_though_all_are_back() -> None:
    """The silos say which set they are bound to."""
    federation = Federation(SEVEN, through_wire=True)
    fault = Fault(VICTIM, "sum-masked", round=0)
    assert run(federation, faults=(fault,)).error is None
    again = run(federation, attempt=2)
    assert again.error is None
    assert again.result[0].present == OTHERS
    np.testing.assert_array_equal(again.result[0].total, expected(OTHERS, 0))
    assert isinstance(again.errors[VICTIM], PlacePassed)
    missing = run(federation, attempt=3, present=OTHERS[1:])
    assert isinstance(missing.error, QuorumLost)
    assert OTHERS[0] in str(missing.error)


async def honest(sums: CoordinatorSums, hub: Any) -> Any:
    await sums.setup(AT)
    return await sums.total(AT, N)


def with_roster(change: Any) -> Any:
    """A coordinator that alters the key offers that it shows to each silo."""

    async def coordinate(sums: CoordinatorSums, hub: Any) -> Any:
        offers = dict(await hub.collect(KEYS, AT))
        hub.answer(KEYS, AT, {silo: KeyRoster(change(silo, offers)) for silo in SEVEN})
        sums._members = sums._participants = SEVEN
        sums._session = "job/1/0.0.0"
        return await sums.total(AT, N)

    return coordinate


def test_a_key_that_the_coordinator_put_in_is_found_out() -> None:
    own = LocalVault()
    key = own.create_mask_key("job/1/0.0.0")

    def swap(silo: Silo, offers: dict[Silo, Any]) -> dict[Silo, Any]:
        other = SEVEN[1] if silo == VICTIM else VICTIM
        return offers | {other: replace(offers[other], public_key=key)}

    ended = Federation(SEVEN).run(with_roster(swap), take_part)
    assert all(isinstance(error, SignatureInvalid) for error in ended.errors.values())
    assert len(ended.errors) == 7


def test_silos_that_are_shown_different_groups_do_not_open_each_others_boxes() -> None:
    def hide(silo: Silo, offers: dict[Silo, Any]) -> dict[Silo, Any]:
        if silo != VICTIM:
            return offers
        return {name: offer for name, offer in offers.items() if name != SEVEN[6]}

    ended = Federation(SEVEN).run(with_roster(hide), take_part)
    for silo in SEVEN[:2]:
        assert isinstance(ended.errors[silo], SumRefused)
    assert "does not open" in str(ended.errors[SEVEN[1]])


@pytest.mark.parametrize(
    "shown", [SEVEN[:2], SEVEN[:1], (SEVEN[1], SEVEN[2], SEVEN[3])], ids=["two", "one", "others"]
)
def test_groups_that_are_too_small_or_lack_the_silo_itself_are_refused(
    shown: tuple[Silo, ...],
) -> None:
    def show(silo: Silo, offers: dict[Silo, Any]) -> dict[Silo, Any]:
        return {name: offers[name] for name in shown}

    ended = Federation(SEVEN).run(with_roster(show), take_part)
    assert isinstance(ended.errors[VICTIM], SumRefused)


def test_a_certified_silo_that_is_not_on_the_roster_is_refused() -> None:
    federation = Federation((*SEVEN, Silo("stranger")))

    def participate(sums: SiloSums, link: Any) -> Any:
        if link.silo != "stranger":
            sums._roster = SEVEN
        return take_part(sums, link)

    ended = federation.run(honest, participate)
    assert all(isinstance(ended.errors[silo], SumRefused) for silo in SEVEN)


def test_silos_with_different_parameters_do_not_mask_together() -> None:
    def participate(sums: SiloSums, link: Any) -> Any:
        if link.silo == VICTIM:
            sums._parameters = SumParameters(threshold=4)
        return take_part(sums, link)

    ended = Federation(SEVEN).run(honest, participate)
    assert isinstance(ended.error, QuorumLost)
    assert all(isinstance(ended.errors[silo], SignatureInvalid) for silo in SEVEN)


def test_an_altered_box_names_its_sender() -> None:
    def participate(sums: SiloSums, link: Any) -> Any:
        exchange = link.exchange

        def alter(step: Any, at: ExchangeKey, offer: Any) -> Any:
            if isinstance(offer, SealedShares) and link.silo == VICTIM:
                boxes = {
                    peer: replace(dealt, box=dealt.box[:-1] + bytes([dealt.box[-1] ^ 1]))
                    for peer, dealt in offer.boxes.items()
                    if dealt.box
                }
                offer = SealedShares({**offer.boxes, **boxes})
            return exchange(step, at, offer)

        link.exchange = alter
        return take_part(sums, link)

    ended = Federation(SEVEN).run(honest, participate)
    for silo in OTHERS:
        assert isinstance(ended.errors[silo], SumRefused)
        assert VICTIM in str(ended.errors[silo])


def test_a_blind_coordinator_sees_unrelated_words_each_time() -> None:
    parameters = SumParameters(blind_coordinator=True)
    runs = [run(Federation(SEVEN, parameters)) for _ in range(2)]
    blinded = [ended.result[0].total for ended in runs]
    total = expected(SEVEN, 0)
    for ended in runs:
        for silo in SEVEN:
            np.testing.assert_array_equal(ended.silos[silo][0].values, total)
    assert not (blinded[0] == total).any()
    assert not (blinded[0] == blinded[1]).any()
    assert not (np.diff(blinded[0] - total) == 0).any()


def test_masks_of_a_redone_sum_are_fresh() -> None:
    """The same data under the same masks twice would show nothing new, under others' the mask."""
    federation = Federation(SEVEN, linger_seconds=0.0)
    uploads = []

    async def coordinate(sums: CoordinatorSums, hub: Any) -> None:
        uploads.append(await upload(sums, hub))

    for attempt in (1, 2):
        federation.run(coordinate, take_part, attempt=attempt)
    for silo in SEVEN:
        assert not (uploads[0][silo].values == uploads[1][silo].values).any()


A, B, C, D, M = (Silo(name) for name in "abcdm")


def begun(bounds: dict[Silo, tuple[Silo, ...]], *, least: int = 3) -> tuple[Silo, ...]:
    uploads = {
        silo: MaskedVector(vector(silo, 0), 64, bytes(32), b"", bounds.get(silo, ()))
        for silo in (A, B, C, D, M)
    }
    return begun_set(uploads, least)


@pytest.mark.parametrize(
    "hostile",
    [
        (Silo("x"),),
        (M, Silo("x")),
        (A, B, C),
        (M, A, B),
        (A, A, B, M),
        (A, M),
        (A, B, M, Silo("x")),
        (M,),
    ],
)
def test_a_set_that_one_silo_makes_up_neither_ends_nor_narrows_a_sum(
    hostile: tuple[Silo, ...],
) -> None:
    assert begun({M: hostile}) == ()
    honest = (A, B, C, D)
    assert begun({M: hostile} | dict.fromkeys(honest, honest)) == honest


def test_one_silo_is_believed_where_the_sum_can_go_on_over_its_set() -> None:
    assert begun({A: (A, B, C)}) == (A, B, C)


def test_a_set_of_silos_that_are_not_all_there_is_believed_if_most_name_it() -> None:
    bound = (A, B, C, Silo("x"))
    assert begun(dict.fromkeys((A, B, C), bound)) == bound
    assert begun(dict.fromkeys((A, B), bound)) == ()


def test_a_made_up_set_does_not_keep_the_others_from_their_sum() -> None:
    class LyingLink(WatchedLink):
        def exchange(self, step: Any, at: ExchangeKey, offer: Any) -> Any:
            if self.silo == VICTIM and step.name == SUM.masked.name:
                offer = replace(offer, bound=(VICTIM, Silo("x")))
            return super().exchange(step, at, offer)

    async def coordinate(sums: CoordinatorSums, hub: Any) -> Any:
        await sums.setup(AT)
        outcomes = []
        for round_ in range(2):
            outcome = await sums.sum(SUM, ExchangeKey(round_), N)
            assert outcome.total is not None
            sums.answer(SUM, outcome, SumTotal(outcome.total, 64, outcome.present))
            outcomes.append(outcome)
        return outcomes

    def participate(sums: SiloSums, link: Any) -> Any:
        link.__class__ = LyingLink
        sums.setup(AT)
        return [
            sums.sum(
                SUM,
                ExchangeKey(round_),
                vector(link.silo, round_),
                state=STATE,
            )
            for round_ in range(2)
        ]

    ended = Federation(SEVEN).run(coordinate, participate)
    assert ended.error is None
    for round_, outcome in enumerate(ended.result):
        assert outcome.present == SEVEN
        np.testing.assert_array_equal(outcome.total, expected(SEVEN, round_))


def relayed(change: Any) -> Any:
    """As :func:`with_roster`, for groups that complete their sum."""

    async def coordinate(sums: CoordinatorSums, hub: Any) -> Any:
        answer = hub.answer

        def altered(step: Any, at: ExchangeKey, replies: dict[Silo, Any]) -> None:
            if step == KEYS:
                replies = {
                    silo: KeyRoster(change(silo, dict(reply.offers)))
                    for silo, reply in replies.items()
                }
            answer(step, at, replies)

        hub.answer = altered
        return await honest(sums, hub)

    return coordinate


def older(offers: dict[Silo, Any], silos: tuple[Silo, ...] = SEVEN) -> dict[Silo, Any]:
    """Take the ML-KEM keys of some silos off."""
    return offers | {silo: offers[silo].without_kem for silo in silos}


def groups_of(federation: Federation, coordinate: Any, take: Any = take_part) -> Any:
    found: dict[Silo, bool] = {}

    def participate(sums: SiloSums, link: Any) -> Any:
        total = take(sums, link)
        assert sums._group is not None
        found[link.silo] = bool(sums._group.kem_keys)
        return total

    return federation.run(coordinate, participate), found


@pytest.mark.parametrize("through_wire", [False, True])
def test_silos_agree_on_keys_by_ml_kem_where_all_have_one(through_wire: bool) -> None:
    ended, found = groups_of(Federation(SEVEN, through_wire=through_wire), honest)
    assert not ended.errors
    np.testing.assert_array_equal(ended.result.total, expected(SEVEN, 0))
    assert set(found.values()) == {True}


def test_with_a_coordinator_of_an_older_release_sums_go_on_by_x25519() -> None:
    ended, found = groups_of(Federation(SEVEN), relayed(lambda silo, offers: older(offers)))
    assert not ended.errors
    np.testing.assert_array_equal(ended.result.total, expected(SEVEN, 0))
    assert set(found.values()) == {False}


def test_with_a_silo_of_an_older_release_sums_go_on_by_x25519() -> None:
    class OlderVault(LocalVault):
        def create_mask_key(self, session: str, hybrid: bool = False) -> bytes:
            return super().create_mask_key(session)

    made = iter([OlderVault(), *(LocalVault() for _ in SEVEN)])
    ended, found = groups_of(Federation(SEVEN, make_vault=lambda: next(made)), honest)
    assert not ended.errors
    np.testing.assert_array_equal(ended.result.total, expected(SEVEN, 0))
    assert set(found.values()) == {False}


def test_where_no_shares_are_exchanged_keys_are_of_x25519() -> None:
    federation = Federation(SEVEN, SumParameters(dropout_recovery=False))
    ended, found = groups_of(federation, honest)
    assert not ended.errors
    assert set(found.values()) == {False}


def test_a_coordinator_that_takes_off_some_ml_kem_keys_is_noticed() -> None:
    off = (VICTIM,)
    ended = Federation(SEVEN).run(with_roster(lambda silo, offers: older(offers, off)), take_part)
    assert isinstance(ended.errors[VICTIM], SumRefused)
    assert "another key" in str(ended.errors[VICTIM])

    def hide_from_others(silo: Silo, offers: dict[Silo, Any]) -> dict[Silo, Any]:
        return offers if silo == VICTIM else older(offers, off)

    ended = Federation(SEVEN).run(with_roster(hide_from_others), take_part)
    assert all(isinstance(error, SumRefused) for error in ended.errors.values())
    assert ended.errors


def test_an_ml_kem_key_that_the_coordinator_put_in_is_found_out() -> None:
    own = LocalVault().create_mask_key("job/1/0.0.0", hybrid=True)[32:]

    def swap(silo: Silo, offers: dict[Silo, Any]) -> dict[Silo, Any]:
        other = SEVEN[1] if silo == VICTIM else VICTIM
        return offers | {other: replace(offers[other], kem_key=own)}

    ended = Federation(SEVEN).run(with_roster(swap), take_part)
    assert len(ended.errors) == 7
    assert all(isinstance(error, SignatureInvalid) for error in ended.errors.values())


@pytest.mark.parametrize("recovery", [True, False])
def test_a_policy_that_requires_ml_kem_refuses_groups_without(recovery: bool) -> None:
    def strict(sums: SiloSums, link: Any) -> Any:
        sums._require_hybrid = True
        return take_part(sums, link)

    federation = Federation(SEVEN, SumParameters(dropout_recovery=recovery))
    ended = federation.run(relayed(lambda silo, offers: older(offers)), strict)
    assert len(ended.errors) == 7
    assert all("require_hybrid" in str(error) for error in ended.errors.values())
    if recovery:
        assert not Federation(SEVEN).run(honest, strict).errors


def test_a_silo_says_its_companions_in_later_jobs_and_nobody_can_change_them() -> None:
    one = Federation(SEVEN, through_wire=True, groups=deal(SEVEN, 1))
    ended = one.run(honest, take_part)
    assert not ended.errors
    own = {silo: tuple(one.companions[silo]) for silo in SEVEN}
    assert {own[silo] for silo in SEVEN} == set(deal(SEVEN, 1))

    def without(silo: Silo, offers: dict[Silo, Any]) -> dict[Silo, Any]:
        assert offers[SEVEN[1]].companions == own[SEVEN[1]]
        return offers | {SEVEN[1]: replace(offers[SEVEN[1]], companions=())}

    later = replace(one, groups=deal(SEVEN, 2), memories={})
    assert not later.run(honest, take_part).errors
    told = replace(one, memories={}).run(relayed(without), take_part)
    assert any(isinstance(error, SignatureInvalid) for error in told.errors.values())
    few = replace(one, silos=SEVEN[:4], groups=deal(SEVEN[:4], 1), memories={})
    ended = few.run(honest, take_part)
    assert isinstance(ended.error, QuorumLost), ended.error
