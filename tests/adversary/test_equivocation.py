"""A coordinator that shows one silo another reply than the others, in each field of each reply.

Nobody signs replies (docs/adr/0005): a silo that was shown something else must have another view,
or put in the same vector as honestly. The coordinator here compares no views.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hedgerow.boosting.sums import silo as silo_sums
from tests.adversary import mutate, oracle

SECURE = (
    "bagging",
    "boost",
    "boost-clear",
    "dp",
    "hist-blind",
    "hist-coarse",
    "hist-secure",
    "llr-leaves",
)
"""Jobs with secure sums, of each strategy that has them."""


def shown_to_one(name: str) -> Iterator[mutate.Verdict]:
    """Yield what comes of one lie in each field of each reply, told to one silo."""
    with oracle.watching():  # honest runs, too: what silos draw is another thing without it
        payloads = mutate.recording(name).payloads
        known = mutate.groups((name,))
        for (_, direction, _, _), lies in known:
            for moment, target, lie in lies if direction == "reply" else ():
                victim = max(payloads[moment])
                case = mutate.Case(0, name, moment, target, lie, frozenset({victim}), lie)
                verdict = mutate.judge(case)
                if verdict.result not in ("no lie", "refused by the decoder"):
                    yield verdict
                    break


@pytest.mark.parametrize("name", SECURE)
def test_equivocation_in_any_common_field_opens_nothing(name: str) -> None:
    """Where a sum opens, its silos had one view, and the victim put in its honest vector."""
    verdicts = [*shown_to_one(name)]
    assert [fault for verdict in verdicts for fault in verdict.faults] == []
    assert len(verdicts) >= 8


@pytest.mark.parametrize("name", ["dp", "llr-leaves"])
def test_equivocation_without_views_opens_sums_of_different_questions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above fails where the defence is taken out."""
    with oracle.watching():
        mutate.groups((name,))  # recorded while silos are honest
    monkeypatch.setattr(silo_sums, "sum_view", lambda *view: bytes(32))
    faults = [fault for verdict in shown_to_one(name) for fault in verdict.faults]
    assert any("from different views" in fault for fault in faults)
