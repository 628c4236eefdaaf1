"""A silo's time in a job is split by what it went into."""

from __future__ import annotations

import json

from hedgerow.client_agent.timing import Stopwatch, summary
from hedgerow.services.rpc.link import LinkTimes


def test_the_parts_add_up_to_the_whole() -> None:
    report = json.loads(summary(2, 10.0, LinkTimes(3.0, 1.0, 0.25), 0.75))
    assert report == {
        "schema": 1, "attempt": 2, "seconds": 10.0,
        "train": 5.0, "wait": 3.0, "encrypt": 0.75, "send": 1.0, "ledger": 0.25,
    }  # fmt: skip


def test_a_stopwatch_adds_up_the_seconds_of_its_blocks() -> None:
    times = iter([1.0, 4.0, 10.0, 10.5])
    stopwatch = Stopwatch(lambda: next(times))
    for _ in range(2):
        with stopwatch.running():
            pass
    assert stopwatch.seconds == 3.5
