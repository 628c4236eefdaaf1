"""The audit of epsilon: true mechanisms hold, broken ones are caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks import private_audit
from benchmarks.dp_audit import (
    CAUGHT,
    EDGES,
    FAULTS,
    SCHEMA,
    AllParts,
    Answering,
    Game,
    HalfNoise,
    OneCount,
    answering,
    as_expected,
    audit,
    bound,
    games,
    member_game,
    rows_game,
    tree_game,
)
from hedgerow.boosting.strategies.dp_tree.noisy_tree import open_root
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.sums.answers import NoisyRelease
from tests.late import Late

stats: Any = Late("scipy.stats")

RUNS = 1_000


def rows(answers: Answering) -> Game:
    return rows_game(2.0, answers)


def root(answers: Answering) -> Game:
    parameters = DPTree(4.0, depth=1, bins=4, secure=False, binning="quantile")
    return tree_game("root", parameters, [open_root(SCHEMA, EDGES)], answers)


def three(answers: Answering) -> Game:
    return member_game("three", 0.1, 3, answers)


def five(answers: Answering) -> Game:
    return member_game("five", 0.3, 5, answers)


@pytest.mark.parametrize("game", [rows, root, three, five])
def test_what_silos_send_bears_out_its_epsilon(game: Callable[[Answering], Game]) -> None:
    one = game(answering(NoisyRelease, np.random.default_rng(1).bytes))
    least = audit(one, 4 * RUNS if one.claimed < 0.2 else RUNS)
    assert 0.25 * one.claimed < least <= one.claimed


@pytest.mark.parametrize(
    ("game", "fault"),
    [
        (rows, HalfNoise),
        (root, HalfNoise),
        (root, OneCount),
        (three, AllParts),
        (five, AllParts),
    ],
)
def test_a_mechanism_with_too_little_noise_is_caught(
    game: Callable[[Answering], Game], fault: type[NoisyRelease]
) -> None:
    one = game(answering(fault, np.random.default_rng(1).bytes))
    assert audit(one, 2 * RUNS) > one.claimed  # any change of a job draws other noise


def test_a_fault_that_one_mechanism_alone_shows_is_no_success() -> None:
    names = {game.name for game in games(answering(NoisyRelease))}
    rows = [{"mechanism": name, "claimed": 1.0, "at_least": 2.0} for name in sorted(names)]
    missed = [{**row, "at_least": 0.9} for row in rows]
    assert as_expected(missed, None)
    assert CAUGHT.keys() == FAULTS.keys()
    for fault, caught in CAUGHT.items():
        assert caught <= names
        assert as_expected(rows, fault)
        assert not as_expected(missed, fault)
    for k, row in enumerate(rows):
        others = [*missed[:k], row, *missed[k + 1 :]]
        assert not any(as_expected(others, fault) for fault in (None, *FAULTS))
        others = [*rows[:k], missed[k], *rows[k + 1 :]]
        for fault, caught in CAUGHT.items():
            assert as_expected(others, fault) == (row["mechanism"] not in caught)


def test_the_bound_is_that_of_clopper_and_pearson() -> None:
    # 90 of 100 against 10 of 100: both intervals end equally far from a half.
    odds = np.exp(bound(90, 10, 100, 0.99))
    assert stats.binom.sf(89, 100, odds / (1 + odds)) == pytest.approx(0.005)
    assert bound(0, 10, 100) == bound(10, 10, 100) == 0.0


def test_a_whole_job_over_public_structures_bears_out_its_epsilon() -> None:
    entropy = np.random.default_rng(1).bytes
    whole, quarter = (private_audit.played(80, share, entropy) for share in (1.0, 0.25))
    assert private_audit.least_epsilon(whole) <= private_audit.EPSILON
    assert private_audit.least_epsilon(quarter) > private_audit.EPSILON
    # The row at stake uses most of what is charged, and no more.
    assert 0.6 < private_audit.distance(whole) / private_audit.charged_distance() < 1.3
