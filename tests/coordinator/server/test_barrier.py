"""The barrier by itself: idempotency, loss, lateness and forgetting."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from hedgerow.boosting.errors import JobStopped, OfferRejected, PlacePassed, QuorumLost
from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Silo, Step
from hedgerow.coordinator.server.arrived import LARGE_BYTES, ArrivedOffer
from hedgerow.coordinator.server.barrier import Barrier


@dataclass(frozen=True, slots=True)
class Number:
    value: int


STEP = Step("add", Call.SUMS, Number, Number, "a number", Discloses.NOTHING)
A, B, C, D = Silo("a"), Silo("b"), Silo("c"), Silo("d")


def parcel(value: int, call: Call = Call.SUMS) -> ArrivedOffer[Any]:
    return ArrivedOffer(call, lambda _: Number(value))


def hub(*present: Silo, timeout: float = 5.0) -> Barrier:
    return Barrier((A, B, C), present or (A, B, C), timeout)


async def test_a_place_collects_all_offers_in_sorted_order_and_answers_each() -> None:
    h = hub()
    waits = [h.offer(s, "add", ExchangeKey(0), parcel(i)) for i, s in enumerate((C, A, B))]
    offers = await h.collect(STEP, ExchangeKey(0))
    assert list(offers) == [A, B, C]
    h.answer(STEP, ExchangeKey(0), {s: Number(9) for s in offers})
    assert [w.result().value for w in waits] == [9, 9, 9]


async def test_resent_offer_changes_nothing_and_gets_the_same_reply() -> None:
    h = hub(A)
    first = h.offer(A, "add", ExchangeKey(0), parcel(1))
    again = h.offer(A, "add", ExchangeKey(0), parcel(2))
    assert (await h.collect(STEP, ExchangeKey(0)))[A].value == 1
    h.answer(STEP, ExchangeKey(0), {A: Number(5)})
    late = h.offer(A, "add", ExchangeKey(0), parcel(3))
    assert first is again is late
    assert (await late).value == 5


async def test_a_reply_that_was_lost_is_given_once_more() -> None:
    h = hub(A, B)
    waits = {s: h.offer(s, "add", ExchangeKey(0), parcel(1)) for s in (A, B)}
    await h.collect(STEP, ExchangeKey(0))
    h.answer(STEP, ExchangeKey(0), {A: Number(5), B: Number(6)})
    assert h.offer(B, "add", ExchangeKey(0), parcel(2)) is waits[B]
    assert (await waits[B]).value == 6


async def test_nothing_grows_with_rounds() -> None:
    h = hub(A, B)
    for r in range(50):
        waits = [h.offer(s, "add", ExchangeKey(r), parcel(r)) for s in (A, B)]
        await h.collect(STEP, ExchangeKey(r))
        h.answer(STEP, ExchangeKey(r), {A: Number(r), B: Number(r)})
        await asyncio.gather(*waits)
        assert h.open_places <= 1


async def test_a_lost_silo_is_left_out_where_the_quorum_allows() -> None:
    h = hub()
    for s in (A, B):
        h.offer(s, "add", ExchangeKey(0), parcel(1))
    wait = asyncio.create_task(h.collect(STEP, ExchangeKey(0), quorum=2))
    await asyncio.sleep(0)
    h.drop(C, "lease ended")
    assert list(await wait) == [A, B]
    with pytest.raises(PlacePassed, match="step 'add' of round 0 was closed without c"):
        h.offer(C, "add", ExchangeKey(0), parcel(1))


async def test_a_lost_silo_without_quorum_names_itself_at_once() -> None:
    h = hub()
    wait = asyncio.create_task(h.collect(STEP, ExchangeKey(0)))
    await asyncio.sleep(0)
    h.drop(C, "lease ended")
    with pytest.raises(QuorumLost, match=r"missing c$"):
        await wait


async def test_a_silo_that_left_and_is_back_is_not_awaited_where_silos_are_named() -> None:
    h = hub()
    waiting = asyncio.ensure_future(h.collect(STEP, ExchangeKey(0), silos=(A, B, C), quorum=2))
    await asyncio.sleep(0)
    h.drop(B, "its agent has restarted")
    h.offer(A, "add", ExchangeKey(0), parcel(1))
    await asyncio.sleep(0)
    h.join(B)  # it has entered anew before the others offered
    for _ in range(10):
        await asyncio.sleep(0)
    assert h.waiting is not None
    assert h.waiting.silos == (C,)
    h.offer(C, "add", ExchangeKey(0), parcel(3))
    async with asyncio.timeout(60):
        assert list(await waiting) == [A, C]


async def test_a_silo_that_left_since_a_set_was_fixed_is_not_awaited() -> None:
    h = hub()
    fixed = h.left
    h.drop(B, "its agent has restarted")
    h.join(B)
    for s in (A, C):
        h.offer(s, "add", ExchangeKey(0), parcel(1))
    async with asyncio.timeout(60):
        assert list(
            await h.collect(STEP, ExchangeKey(0), silos=(A, B, C), since=fixed, quorum=2)
        ) == [
            A,
            C,
        ]
        with pytest.raises(QuorumLost, match="missing b"):
            await h.collect(STEP, ExchangeKey(1), silos=(A, B, C), since=fixed)


async def test_the_deadline_drops_the_silent_silo() -> None:
    h = hub(timeout=0.05)
    h.offer(A, "add", ExchangeKey(0), parcel(1))
    h.offer(B, "add", ExchangeKey(0), parcel(1))
    assert list(await h.collect(STEP, ExchangeKey(0), quorum=2)) == [A, B]
    assert h.silos == (A, B)


async def test_a_joiner_is_present_from_the_next_collect() -> None:
    h = hub(A, B)
    for s in (A, B):
        h.offer(s, "add", ExchangeKey(0), parcel(1))
    wait = asyncio.create_task(h.collect(STEP, ExchangeKey(0)))
    await asyncio.sleep(0)
    h.join(C)
    assert list(await wait) == [A, B]
    assert h.silos == (A, B, C)


async def test_an_offer_by_the_wrong_rpc_is_refused_and_its_silo_named() -> None:
    h = hub(A)
    bad = h.offer(A, "add", ExchangeKey(0), parcel(1, Call.TREES))
    with pytest.raises(QuorumLost, match=r"a \(step 'add' travels by ExchangeSums"):
        await h.collect(STEP, ExchangeKey(0))
    with pytest.raises(OfferRejected):
        await bad


async def test_a_served_step_answers_at_once_also_offers_that_came_before() -> None:
    h = hub(A)
    early = h.offer(B, "add", ExchangeKey(3), parcel(1))
    h.serve(STEP, lambda silo, at, offer: Number(offer.value + 1))
    assert (await early).value == 2
    assert (await h.offer(C, "add", ExchangeKey(0), parcel(5))).value == 6
    assert h.silos == (A, B, C)


async def test_an_ended_attempt_releases_everyone() -> None:
    h = hub()
    wait = h.offer(A, "add", ExchangeKey(0), parcel(1))
    collecting = asyncio.create_task(h.collect(STEP, ExchangeKey(0)))
    await asyncio.sleep(0)
    h.end(JobStopped("cancelled"))
    with pytest.raises(JobStopped):
        await wait
    with pytest.raises(JobStopped):
        await collecting
    with pytest.raises(JobStopped):
        h.offer(B, "add", ExchangeKey(0), parcel(1))


async def test_a_stranger_is_refused() -> None:
    with pytest.raises(OfferRejected, match="roster"):
        hub().offer(Silo("mallory"), "add", ExchangeKey(0), parcel(1))


async def test_of_a_silo_only_its_last_unasked_offer_is_kept() -> None:
    h = hub()
    waits = [h.offer(A, f"junk{k}", ExchangeKey(k), parcel(k)) for k in range(100)]
    assert h.open_places == 1
    for wait in waits[:-1]:
        with pytest.raises(OfferRejected, match="offered at another place"):
            await wait
    assert not waits[-1].done()


async def test_an_offer_that_was_asked_for_is_not_displaced_by_a_later_one() -> None:
    h = hub(A, B)
    first = h.offer(A, "add", ExchangeKey(0), parcel(1))
    wait = asyncio.create_task(h.collect(STEP, ExchangeKey(0)))
    await asyncio.sleep(0)
    h.offer(A, "add", ExchangeKey(1), parcel(2))
    assert h.offer(A, "add", ExchangeKey(0), parcel(9)) is first
    h.offer(B, "add", ExchangeKey(0), parcel(3))
    offers = await wait
    assert {silo: offer.value for silo, offer in offers.items()} == {A: 1, B: 3}
    h.answer(STEP, ExchangeKey(0), {A: Number(4), B: Number(4)})
    assert (await first).value == 4


async def test_a_place_that_a_silo_left_before_its_reply_is_forgotten_with_the_next() -> None:
    h = hub(A, B)
    h.offer(A, "add", ExchangeKey(0), parcel(1))
    wait = asyncio.create_task(h.collect(STEP, ExchangeKey(0)))
    await asyncio.sleep(0)
    h.offer(A, "add", ExchangeKey(1), parcel(2))
    for r in range(2):
        h.offer(B, "add", ExchangeKey(r), parcel(3))
        await (wait if r == 0 else h.collect(STEP, ExchangeKey(r)))
        h.answer(STEP, ExchangeKey(r), {A: Number(4), B: Number(4)})
    assert h.open_places == 1


async def test_a_place_that_everyone_has_left_stays_closed() -> None:
    h = hub(A)
    for r in range(2):
        h.offer(A, "add", ExchangeKey(r), parcel(1))
        await h.collect(STEP, ExchangeKey(r))
        h.answer(STEP, ExchangeKey(r), {A: Number(1)})
    h.offer(A, "other", ExchangeKey(1), parcel(1))
    for r in range(2):
        with pytest.raises(PlacePassed):
            h.offer(B, "add", ExchangeKey(r), parcel(1))
    assert h.open_places == 1


async def test_whoever_comes_or_goes_is_told_once_with_the_reason() -> None:
    told: list[tuple[Silo, bool, str]] = []
    h = Barrier((A, B), (A, B), 5.0, lambda *change: told.append(change))
    for _ in range(2):
        h.drop(B, "lease ended")
    for _ in range(2):
        h.join(B)
    h.join(D)
    assert told == [(B, False, "lease ended"), (B, True, "")]


async def test_a_rejected_offer_is_refused_with_the_reason_and_its_silo_dropped() -> None:
    told: list[tuple[Silo, bool, str]] = []
    h = Barrier((A, B), (A, B), 5.0, lambda *change: told.append(change))
    waits = {s: h.offer(s, "add", ExchangeKey(0), parcel(1)) for s in (A, B)}
    assert h.n_offered("add", ExchangeKey(0)) == 2
    assert h.n_offered("add", ExchangeKey(1)) == h.n_offered("other", ExchangeKey(0)) == 0
    await h.collect(STEP, ExchangeKey(0))
    h.reject(STEP, ExchangeKey(0), B, "its sum is wrong")
    h.answer(STEP, ExchangeKey(0), {A: Number(1), B: Number(1)})
    with pytest.raises(OfferRejected, match="its sum is wrong"):
        await waits[B]
    assert (await waits[A]).value == 1
    assert told == [(B, False, "its sum is wrong")]


async def test_an_attempt_that_ends_waits_until_replies_are_sent() -> None:
    h = hub(A, B)
    await h.all_delivered(1e6)  # of none
    for s in (A, B):
        h.receive(s, "add", ExchangeKey(0), Call.SUMS, lambda _: Number(1))
    await h.collect(STEP, ExchangeKey(0))
    h.answer(STEP, ExchangeKey(0), {A: Number(1), B: Number(1)})
    sent = asyncio.create_task(h.all_delivered(1e6))
    for s in (A, B):
        await asyncio.sleep(0)
        assert not sent.done()
        h.delivered(s, "add", ExchangeKey(0))
    await sent


async def test_replies_that_nobody_fetches_hold_nothing_up() -> None:
    h = hub(A)
    h.receive(A, "add", ExchangeKey(0), Call.SUMS, lambda _: Number(1))
    await h.collect(STEP, ExchangeKey(0))
    h.answer(STEP, ExchangeKey(0), {A: Number(1)})
    await h.all_delivered(0.01)
    await h.all_delivered(1e6)  # they have been given up


async def test_a_silo_that_leaves_a_place_can_come_back_to_it() -> None:
    h = hub(A)
    h.offer(A, "add", ExchangeKey(0), parcel(1))
    h.offer(A, "other", ExchangeKey(0), parcel(2))
    h.offer(A, "add", ExchangeKey(0), parcel(3))
    assert (await h.collect(STEP, ExchangeKey(0)))[A].value == 3


async def test_a_served_step_leaves_the_offer_that_waits_at_a_barrier() -> None:
    h = hub(A)
    sync = Step("sync", Call.SUMS, Number, Number, "a number", Discloses.NOTHING)
    h.serve(sync, lambda silo, at, offer: offer)
    h.offer(A, "add", ExchangeKey(0), parcel(1))
    assert (await h.offer(A, "sync", ExchangeKey(0), parcel(2))).value == 2
    assert (await h.collect(STEP, ExchangeKey(0)))[A].value == 1


async def test_a_silo_that_was_not_invited_does_not_stand_in_for_a_lost_one() -> None:
    h = Barrier((A, B, C, D), (A, B, C, D), 5.0)
    waits = {s: h.offer(s, "add", ExchangeKey(0), parcel(1)) for s in (A, B, D)}
    h.drop(C, "gone")
    with pytest.raises(QuorumLost, match=r"missing c$"):
        await h.collect(STEP, ExchangeKey(0), silos=(A, B, C))
    assert not waits[A].done()


async def test_a_joiner_does_not_stand_in_for_a_lost_silo_where_all_are_needed() -> None:
    h = hub(A, B)
    wait = asyncio.create_task(h.collect(STEP, ExchangeKey(0)))
    await asyncio.sleep(0)
    h.offer(A, "add", ExchangeKey(0), parcel(1))
    h.join(C)
    h.offer(C, "add", ExchangeKey(0), parcel(1))
    h.drop(B, "gone")
    with pytest.raises(QuorumLost, match=r"missing b$"):
        await wait


async def test_a_silo_that_was_not_invited_is_told_that_the_place_has_passed() -> None:
    h = Barrier((A, B, C, D), (A, B, C, D), 5.0)
    waits = {s: h.offer(s, "add", ExchangeKey(0), parcel(1)) for s in (A, B, D)}
    assert list(await h.collect(STEP, ExchangeKey(0), silos=(A, B), quorum=1)) == [A, B]
    with pytest.raises(PlacePassed):
        await waits[D]
    h.answer(STEP, ExchangeKey(0), {A: Number(1), B: Number(1)})
    again = h.offer(D, "add", ExchangeKey(1), parcel(1))
    assert not again.done()


async def test_a_large_offer_is_decoded_off_the_loop_and_nothing_is_missed_meanwhile() -> None:
    h = hub(A, B, timeout=1e6)
    loop_thread = threading.get_ident()
    threads: list[int] = []
    decoding, may_go_on = threading.Event(), threading.Event()

    def decode(_: type[Any]) -> Number:
        threads.append(threading.get_ident())
        decoding.set()
        assert may_go_on.wait(5.0)
        return Number(7)

    h.receive(A, "add", ExchangeKey(0), Call.SUMS, decode, LARGE_BYTES + 1)
    read = lambda silo, offer: (silo, offer.value)  # noqa: E731
    wait = asyncio.create_task(h.collect(STEP, ExchangeKey(0), read=read))
    assert await asyncio.to_thread(decoding.wait, 5.0)
    h.offer(B, "add", ExchangeKey(0), parcel(1))
    may_go_on.set()
    assert await asyncio.wait_for(wait, 60.0) == {A: (A, 7), B: (B, 1)}
    assert threads != [loop_thread]


async def test_only_offers_above_the_limit_are_decoded_off_the_loop() -> None:
    h, threads = hub(A, B, timeout=1e6), dict[Silo, int]()
    for silo, n_bytes in ((A, LARGE_BYTES), (B, LARGE_BYTES + 1)):

        def decode(_: type[Any], silo: Silo = silo) -> Number:
            threads[silo] = threading.get_ident()
            return Number(1)

        h.receive(silo, "add", ExchangeKey(0), Call.SUMS, decode, n_bytes)
    await asyncio.wait_for(h.collect(STEP, ExchangeKey(0)), 60.0)
    assert threads[A] == threading.get_ident() != threads[B]


async def test_an_attempt_that_ends_while_an_offer_is_decoded_ends_its_collect() -> None:
    h = hub(A)
    decoding, may_go_on = threading.Event(), threading.Event()

    def decode(_: type[Any]) -> Number:
        decoding.set()
        assert may_go_on.wait(5.0)
        return Number(7)

    h.receive(A, "add", ExchangeKey(0), Call.SUMS, decode, LARGE_BYTES + 1)
    wait = asyncio.create_task(h.collect(STEP, ExchangeKey(0)))
    assert await asyncio.to_thread(decoding.wait, 5.0)
    h.end(JobStopped("cancelled"))
    may_go_on.set()
    with pytest.raises(JobStopped):
        await wait


async def test_a_large_offer_of_a_served_step_is_served_after_it_was_decoded() -> None:
    h = hub(A)
    h.serve(STEP, lambda silo, at, offer: Number(offer.value + at.round))
    good = h.receive(B, "add", ExchangeKey(5), Call.SUMS, lambda _: Number(1), LARGE_BYTES + 1)
    bad = h.receive(C, "add", ExchangeKey(5), Call.TREES, lambda _: Number(1), LARGE_BYTES + 1)
    assert (await good).value == 6
    with pytest.raises(OfferRejected, match="travels by"):
        await bad
    assert h.silos == (A, B)


async def test_of_a_silo_one_large_offer_is_served_at_a_time() -> None:
    h = hub(A)
    h.serve(STEP, lambda silo, at, offer: offer)
    may_go_on = threading.Event()

    def decode(_: type[Any]) -> Number:
        assert may_go_on.wait(5.0)
        return Number(1)

    first = h.receive(A, "add", ExchangeKey(0), Call.SUMS, decode, LARGE_BYTES + 1)
    again = h.receive(A, "add", ExchangeKey(0), Call.SUMS, decode, LARGE_BYTES + 1)
    with pytest.raises(OfferRejected, match="still reading an offer of a"):
        h.receive(A, "add", ExchangeKey(1), Call.SUMS, decode, LARGE_BYTES + 1)
    may_go_on.set()
    assert (await first).value == (await again).value == 1
    assert (await h.offer(A, "add", ExchangeKey(1), parcel(2))).value == 2


async def test_the_end_of_one_large_offer_leaves_the_next_one_guarded() -> None:
    h = hub(A)
    h.serve(STEP, lambda silo, at, offer: offer)
    may_go_on = threading.Event()

    def decode(_: type[Any]) -> Number:
        assert may_go_on.wait(5.0)
        return Number(2)

    await h.receive(A, "add", ExchangeKey(0), Call.SUMS, lambda _: Number(1), LARGE_BYTES + 1)
    second = h.receive(A, "add", ExchangeKey(1), Call.SUMS, decode, LARGE_BYTES + 1)
    for _ in range(3):  # the first one's task ends
        await asyncio.sleep(0)
    with pytest.raises(OfferRejected, match="still reading"):
        h.offer(A, "add", ExchangeKey(2), parcel(3))
    may_go_on.set()
    assert (await second).value == 2


async def test_an_offer_that_the_served_step_refuses_brings_nobody_back() -> None:
    h = hub(A)

    def handler(silo: Silo, at: ExchangeKey, offer: Number) -> Number:
        raise OfferRejected(f"not {offer.value}")

    h.serve(STEP, handler)
    with pytest.raises(OfferRejected, match="not 3"):
        await h.offer(B, "add", ExchangeKey(0), parcel(3))
    assert h.silos == (A,)


async def test_a_silo_whose_large_offer_breaks_the_decoder_is_told_so() -> None:
    h = hub(A)
    h.serve(STEP, lambda silo, at, offer: offer)

    def decode(_: type[Any]) -> Number:
        raise ZeroDivisionError("of ours")

    with pytest.raises(OfferRejected, match=r"^step 'add': ZeroDivisionError$"):
        await h.receive(A, "add", ExchangeKey(0), Call.SUMS, decode, LARGE_BYTES + 1)


async def test_an_attempt_that_ends_while_an_offer_is_decoded_releases_its_silo() -> None:
    h = hub(A)
    h.serve(STEP, lambda silo, at, offer: offer)
    decoding, may_go_on = threading.Event(), threading.Event()

    def decode(_: type[Any]) -> Number:
        decoding.set()
        assert may_go_on.wait(5.0)
        return Number(7)

    wait = h.receive(A, "add", ExchangeKey(0), Call.SUMS, decode, LARGE_BYTES + 1)
    assert await asyncio.to_thread(decoding.wait, 5.0)
    h.end(JobStopped("cancelled"))
    may_go_on.set()
    with pytest.raises(JobStopped):
        await asyncio.wait_for(wait, 60.0)
