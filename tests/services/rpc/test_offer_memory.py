"""Turns of results that are sent."""

from __future__ import annotations

import asyncio

import pytest

from hedgerow.services.rpc import offer_memory
from hedgerow.services.rpc.offer_memory import MOST_PIECES, SendLimiter


def test_results_that_nobody_reads_hold_each_other_one_up_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        turns, read = SendLimiter(), []
        for _ in range(2):
            monkeypatch.setattr(offer_memory, "TURN_SECONDS", 3600.0)
            unread = [turns.paced("xy") for _ in range(MOST_PIECES)]
            assert [await anext(one) for one in unread] == ["x"] * MOST_PIECES
            monkeypatch.setattr(offer_memory, "TURN_SECONDS", 0.0)
            async for piece in turns.paced("abc"):
                read.append(piece)
                monkeypatch.setattr(offer_memory, "TURN_SECONDS", 3600.0)
            for one in unread:
                await one.aclose()
        assert read == list("abc" * 2)

    asyncio.run(asyncio.wait_for(main(), 60))
