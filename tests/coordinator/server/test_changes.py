"""Waking those that wait: no change is lost, and many changes are few wakings."""

from __future__ import annotations

import asyncio

import pytest

from hedgerow.coordinator.server.changes import Changes, Shared


async def test_a_thousand_changes_wake_few_times_and_none_is_lost() -> None:
    changes, seen, number = Changes(), [], 0

    async def watch() -> None:
        while not seen or seen[-1] < 1000:
            await changes.wait(60)
            seen.append(number)

    watching = [asyncio.create_task(watch()) for _ in range(3)]
    await asyncio.sleep(0)
    for number in range(1, 1001):  # noqa: B007 - what the watchers see
        changes.notify()
    await asyncio.gather(*watching)
    assert seen[-1] == 1000
    assert len(seen) <= 2 * 3, "one waking at once, one for all that came after it"


async def test_waiting_ends_without_a_change() -> None:
    await Changes().wait(0.01)


async def test_all_who_ask_before_a_look_begins_share_it_and_looks_pause() -> None:
    asked: list[tuple[int, float]] = []
    clock = asyncio.get_running_loop().time

    async def look(since: int) -> int:
        asked.append((since, clock()))
        await asyncio.sleep(0.05)
        if since == 9:
            raise LookupError
        return since

    shared = Shared(look, 4.0)
    assert await asyncio.gather(*(shared.look(k, min) for k in (3, 1, 2))) == [1, 1, 1]
    leaver = asyncio.create_task(shared.look(5, min))
    other = asyncio.create_task(shared.look(6, min))
    await asyncio.sleep(0.0)
    leaver.cancel()
    assert await other == 5
    assert [since for since, _ in asked] == [1, 5]
    assert asked[1][1] - asked[0][1] >= 0.05 * 5 * 0.9
    first = asyncio.create_task(shared.look(7, min))
    while len(asked) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert await shared.look(8, min) == 8, "what began before may have missed something"
    assert await first == 7
    with pytest.raises(LookupError):
        await shared.look(9, min)
    assert await shared.look(4, min) == 4
