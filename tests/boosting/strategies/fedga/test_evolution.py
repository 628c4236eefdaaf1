"""One generation after another: children are new, nothing is scored twice, all of it is kept."""

from dataclasses import replace

import numpy as np
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.strategies.fedga.checkpoint import SearchState
from hedgerow.boosting.strategies.fedga.evolution import (
    Generation,
    absorb,
    empty_generation,
    first_brood,
    fitness,
    next_brood,
    scores_of,
)
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedga.steps import SearchPhase
from hedgerow.boosting.trees.genetics import keys

NOBODY = np.empty((0, 7), dtype=np.int16)
TWENTY = FedGA(population=20)


def scored(n_features: int, seed: int = 0) -> tuple[Generation, np.random.Generator]:
    """A generation whose fitness is chance."""
    rng = np.random.default_rng(seed)
    brood = first_brood(rng, TWENTY, NOBODY, n_features, 3)
    return absorb(empty_generation(7), brood, rng.random(len(brood)), 20), rng


def test_children_are_distinct_new_and_as_many_as_asked_for() -> None:
    generation, rng = scored(6)
    for _ in range(15):
        brood = next_brood(rng, TWENTY, generation, 6, NOBODY)
        born = keys(brood)
        assert len(set(born)) == len(born) == 20
        assert not set(born) & set(generation.known)
        generation = absorb(generation, brood, rng.random(20), 20)
    assert generation.n_scored == 20 * 16


def test_breeding_ends_where_nothing_new_is_left() -> None:
    one = np.empty((0, 1), dtype=np.int16)
    ten = FedGA(population=10, leaf_share=0.0)
    rng = np.random.default_rng(1)
    brood = first_brood(rng, ten, one, 3, 1)
    generation = absorb(empty_generation(1), brood, rng.random(len(brood)), 10)
    for _ in range(4):
        brood = next_brood(rng, ten, generation, 3, one)
        generation = absorb(generation, brood, rng.random(len(brood)), 10)
    # Three features and the leaf are all the structures there are.
    assert generation.n_scored == 4
    assert len(next_brood(rng, ten, generation, 3, one)) == 0


def test_structures_of_newcomers_join_the_brood_beside_its_children() -> None:
    generation, rng = scored(6)
    fresh = np.array([[5, 4, 3, 2, 1, 0, 5], [5, 4, 3, 2, 1, 0, 5]], dtype=np.int16)
    newcomers = np.concatenate([fresh, generation.population[:1]])
    brood = next_brood(rng, TWENTY, generation, 6, newcomers)
    assert len(brood) == 21
    assert np.array_equal(brood[0], fresh[0])


@pytest.mark.parametrize("rescore", [True, False])
def test_parents_are_scored_again_only_where_the_job_says_so(rescore: bool) -> None:
    generation, rng = scored(6)
    parameters = replace(TWENTY, rescore_parents=rescore)
    brood = next_brood(rng, parameters, generation, 6, NOBODY)
    again = set(keys(brood)) & set(keys(generation.population))
    assert len(again) == (20 if rescore else 0)
    following = absorb(generation, brood, np.full(len(brood), 2.0), 20)
    assert following.best == 2.0


def test_a_search_survives_its_checkpoint() -> None:
    generation, rng = scored(6)
    generation = replace(generation, elite=tuple(keys(generation.population[:2])), stale=3)
    brood = next_brood(rng, TWENTY, generation, 6, NOBODY)
    state = SearchState(
        generation, brood, SearchPhase.SCORE, 4, 3, False, {"a": 7}, frozenset("ab"),
        {"f1": 0.5, "auc": float("nan")},
    )  # fmt: skip
    again = SearchState.decode(state.encode())
    assert np.array_equal(again.generation.population, generation.population)
    assert np.array_equal(again.generation.fitness, generation.fitness)
    assert again.generation.known == generation.known
    assert (again.generation.elite, again.generation.stale) == (generation.elite, 3)
    assert np.array_equal(again.brood, brood)
    assert (again.phase, again.round, again.depth) == (SearchPhase.SCORE, 4, 3)
    assert (again.full, again.rows, again.active) == (False, {"a": 7}, frozenset("ab"))
    assert again.test == {"f1": 0.5}


def test_stale_generations_are_counted_since_the_best_rose() -> None:
    generation, rng = scored(6)
    for expected in (1, 2):
        brood = next_brood(rng, TWENTY, generation, 6, NOBODY)
        generation = absorb(generation, brood, np.zeros(20), 20)
        assert generation.stale == expected
    brood = next_brood(rng, TWENTY, generation, 6, NOBODY)
    assert absorb(generation, brood, np.full(20, 9.0), 20).stale == 0


@pytest.mark.parametrize("task", [Task.BINARY, Task.REGRESSION])
def test_scores_follow_from_fitness(task: Task) -> None:
    generation, rng = scored(6)
    scores = 0.1 + rng.random(20)
    found = fitness(scores, generation.population, 0.01, task)
    again = scores_of(replace(generation, fitness=found), 0.01, task)
    np.testing.assert_allclose(again, scores)
