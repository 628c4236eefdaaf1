"""Which rows an answer tells apart."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.crypto.ciphers.bin_groups import SummedBins

NO_BINS = np.empty((0, 1), np.uint8)


def told_apart(n: int, absent: bool, counts: list[int], chosen: list[bool]) -> list[int]:
    """Put cells into one group that are on the same side of every chosen running sum."""
    present = n - absent
    sides: list[list[object]] = [[] for _ in range(n)]
    for number, sent in enumerate(chosen):
        forwards = number < present
        for cell, side in enumerate(sides):
            if sent and cell < present:
                side.append(cell <= (number if forwards else number - present))
            elif sent:
                side.append(not forwards)
    if absent and any(chosen[:present]) and any(chosen[present:]):
        sides[-1].append("apart")  # taken for told apart from bins between two sums, too
    groups: dict[str, int] = {}
    for side, count in zip(sides, counts, strict=True):
        groups[str(side)] = groups.get(str(side), 0) + count
    return sorted(groups.values()) if len(groups) > 1 else []


@given(st.data(), st.integers(2, 5), st.booleans())
def test_groups_are_those_of_a_loop_over_all_sums(data: st.DataObject, n: int, absent: bool):
    sums = SummedBins(NO_BINS, (n,), cumulative=True, missing=(absent,))
    n_sums = sums.n_sums(0)
    counts = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    chosen = data.draw(st.lists(st.booleans(), min_size=n_sums, max_size=n_sums))
    found = sums.groups(0, np.array(counts), np.array(chosen))
    assert sorted(found.tolist()) == told_apart(n, absent, counts, chosen)
