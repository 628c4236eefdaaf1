"""Waking those that wait: no change is lost, and many changes are few wakings."""

from __future__ import annotations

import asyncio

from hedgerow.coordinator.server.changes import Changes


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
