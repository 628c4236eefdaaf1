"""One generation after another: children are new, nothing is scored twice, and all of it packs."""

import numpy as np
import pytest

from hedgerow.boosting.strategies.fedga.evolution import (
    absorb,
    empty_generation,
    first_brood,
    from_bytes,
    next_brood,
    pack,
    to_bytes,
    unpack,
)
from hedgerow.boosting.trees.genetics import Operators, keys

NOBODY = np.empty((0, 7), dtype=np.int16)


def scored(n_features: int, size: int, seed: int = 0):
    """A generation whose fitness is chance."""
    rng = np.random.default_rng(seed)
    brood = first_brood(rng, NOBODY, size, n_features, 3, 0.2)
    scores = rng.random(len(brood.to_score))
    return absorb(empty_generation(7), brood, scores, size), rng


def test_children_are_distinct_new_and_as_many_as_wanted() -> None:
    generation, rng = scored(6, 20)
    for _ in range(15):
        brood = next_brood(rng, generation, Operators(), 20, 6, NOBODY, False)
        born = keys(brood.to_score)
        assert len(set(born)) == len(born) == 20
        assert not set(born) & set(generation.known)
        generation = absorb(generation, brood, rng.random(20), 20)
    assert generation.n_scored == 20 * 16


def test_breeding_ends_where_nothing_new_is_left() -> None:
    one = np.empty((0, 1), dtype=np.int16)
    rng = np.random.default_rng(1)
    brood = first_brood(rng, one, 10, 3, 1, 0.0)
    generation = absorb(empty_generation(1), brood, rng.random(len(brood.to_score)), 10)
    for _ in range(4):
        brood = next_brood(rng, generation, Operators(), 10, 3, one, False)
        generation = absorb(generation, brood, rng.random(len(brood.to_score)), 10)
    # Three features and the leaf are all the structures there are.
    assert generation.n_scored == 4
    assert len(next_brood(rng, generation, Operators(), 10, 3, one, False).to_score) == 0


def test_structures_of_newcomers_join_the_brood_beside_its_children() -> None:
    generation, rng = scored(6, 20)
    fresh = np.array([[5, 4, 3, 2, 1, 0, 5], [5, 4, 3, 2, 1, 0, 5]], dtype=np.int16)
    known = generation.population[:1]
    newcomers = np.concatenate([fresh, known])
    brood = next_brood(rng, generation, Operators(), 20, 6, newcomers, False)
    assert len(brood.to_score) == 21
    assert np.array_equal(brood.to_score[0], fresh[0])


@pytest.mark.parametrize("rescore", [True, False])
def test_parents_are_scored_again_only_when_told_to(rescore: bool) -> None:
    generation, rng = scored(6, 20)
    brood = next_brood(rng, generation, Operators(), 20, 6, NOBODY, rescore)
    again = set(keys(brood.to_score)) & set(keys(generation.population))
    assert len(again) == (20 if rescore else 0)
    following = absorb(generation, brood, np.full(len(brood.to_score), 2.0), 20)
    assert following.best == 2.0


def test_a_generation_survives_its_checkpoint() -> None:
    generation, rng = scored(6, 20)
    brood = next_brood(rng, generation, Operators(), 20, 6, NOBODY, False)
    again, same = unpack(from_bytes(to_bytes(pack(generation, brood))))
    assert np.array_equal(again.population, generation.population)
    assert np.array_equal(again.fitness, generation.fitness)
    assert again.known == generation.known
    assert np.array_equal(same.to_score, brood.to_score)


def test_stale_generations_are_counted_since_the_best_rose() -> None:
    generation, rng = scored(6, 20)
    for expected in (1, 2):
        brood = next_brood(rng, generation, Operators(), 20, 6, NOBODY, False)
        generation = absorb(generation, brood, np.zeros(20), 20)
        assert generation.stale == expected
    brood = next_brood(rng, generation, Operators(), 20, 6, NOBODY, False)
    assert absorb(generation, brood, np.full(20, 9.0), 20).stale == 0
