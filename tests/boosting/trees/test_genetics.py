"""The encoding of structures and the operators, checked against their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.trees.genetics import (
    LEAF,
    Genes,
    Operators,
    canonical,
    cross,
    decision_nodes,
    depth_of,
    first_of_each,
    flip_nodes,
    gene_count,
    keys,
    random_structures,
    resized,
    survivors,
    swap_nodes,
    swap_substrings,
)


def naive_canonical(genes: list[int], depth: int) -> list[int]:
    """Decode to nested tuples by recursion, then write the string again."""

    def decode(position: int, levels: int) -> tuple | None:
        if levels == 0 or genes[position] == LEAF:
            return None
        return (
            genes[position],
            decode(position + 1, levels - 1),
            decode(position + 2 ** (levels - 1), levels - 1),
        )

    def encode(tree: tuple | None, levels: int) -> list[int]:
        if levels == 0:
            return []
        if tree is None:
            return [LEAF] * gene_count(levels)
        return [tree[0], *encode(tree[1], levels - 1), *encode(tree[2], levels - 1)]

    return encode(decode(0, depth), depth)


@st.composite
def populations(draw: st.DrawFn) -> tuple[Genes, int]:
    depth = draw(st.integers(1, 5))
    n_features = draw(st.integers(1, 6))
    rows = draw(
        st.lists(
            st.lists(
                st.integers(LEAF, n_features - 1),
                min_size=gene_count(depth),
                max_size=gene_count(depth),
            ),
            min_size=2,
            max_size=8,
        )
    )
    return np.array(rows, dtype=np.int16), n_features


@settings(max_examples=60)
@given(populations())
def test_canonical_form_is_the_decoded_tree_encoded_again(drawn: tuple[Genes, int]) -> None:
    population, _ = drawn
    depth = depth_of(population.shape[1])
    expected = [naive_canonical(genes.tolist(), depth) for genes in population]
    assert canonical(population).tolist() == expected
    assert decision_nodes(population).tolist() == [
        sum(gene != LEAF for gene in genes) for genes in expected
    ]


@settings(max_examples=30)
@given(populations())
def test_keys_are_equal_exactly_for_equal_trees(drawn: tuple[Genes, int]) -> None:
    population, _ = drawn
    erased = [tuple(genes) for genes in canonical(population).tolist()]
    assert len(set(keys(population))) == len(set(erased))
    kept = first_of_each(population)
    assert len(kept) == len(set(erased))
    assert [erased.index(e) for e in dict.fromkeys(erased)] == kept.tolist()


@settings(max_examples=60)
@given(populations(), st.integers(1, 5))
def test_a_structure_of_another_depth_is_cut_off_or_has_leaves_below(
    drawn: tuple[Genes, int], depth: int
) -> None:
    population, _ = drawn
    old = depth_of(population.shape[1])
    found = resized(population, depth)
    assert depth_of(found.shape[1]) == depth
    shallower, deeper = sorted((old, depth))
    assert np.array_equal(
        resized(resized(found, deeper), shallower), resized(population, shallower)
    )

    def tree(genes: list[int], levels: int, most: int) -> object:
        if not levels or not most or genes[0] == LEAF:
            return LEAF
        middle = 1 << (levels - 1)
        parts = genes[1:middle], genes[middle:]
        return genes[0], *(tree(part, levels - 1, most - 1) for part in parts)

    for before, after in zip(population.tolist(), found.tolist(), strict=True):
        assert tree(after, depth, depth) == tree(before, old, depth)


def test_paper_layout_left_is_next_and_right_skips_the_left_subtree() -> None:
    # Depth 3: root 0; left 1 with children 2, 3; right 4 with children 5, 6.
    genes = np.array([[0, LEAF, 7, 7, 1, 2, LEAF]], dtype=np.int16)
    assert canonical(genes).tolist() == [[0, LEAF, LEAF, LEAF, 1, 2, LEAF]]


@pytest.mark.parametrize("n_genes", [0, 2, 4, 6, 2047])
def test_lengths_that_are_no_full_tree_are_refused(n_genes: int) -> None:
    with pytest.raises(ValueError, match="full binary tree"):
        depth_of(n_genes)


def test_random_structures_have_a_feature_at_the_root_and_the_share_of_leaves() -> None:
    rng = np.random.default_rng(0)
    population = random_structures(rng, 200, 5, 7, 0.2)
    assert population.shape == (200, 31)
    assert (population[:, 0] != LEAF).all()
    assert ((population == LEAF).sum(axis=1) == 6).all()
    assert set(np.unique(population)) == {LEAF, *range(7)}


@settings(max_examples=40)
@given(populations(), st.integers(0, 2**32 - 1))
def test_crossover_keeps_every_gene_at_its_position(drawn: tuple[Genes, int], seed: int) -> None:
    mother, father = drawn[0][0], drawn[0][1]
    first, second = cross(np.random.default_rng(seed), mother, father)
    assert np.array_equal(np.sort([first, second], axis=0), np.sort([mother, father], axis=0))
    differs = np.flatnonzero(first != mother)
    if differs.size:
        assert np.array_equal(first[differs[0] :], father[differs[0] :])


@settings(max_examples=40)
@given(populations(), st.integers(0, 2**32 - 1), st.floats(0.05, 0.5))
def test_node_flip_changes_the_stated_number_of_genes_to_valid_ones(
    drawn: tuple[Genes, int], seed: int, share: float
) -> None:
    population, n_features = drawn
    genes = population[0]
    flipped = flip_nodes(np.random.default_rng(seed), genes, n_features, share)
    assert (flipped != genes).sum() == max(1, int(np.ceil(share * genes.shape[0])))
    assert flipped.min() >= LEAF
    assert flipped.max() < n_features


def test_node_flip_draws_every_other_value_equally_often() -> None:
    rng = np.random.default_rng(1)
    genes = np.array([1], dtype=np.int16)
    drawn = [int(flip_nodes(rng, genes, 4, 0.1)[0]) for _ in range(4000)]
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [LEAF, 0, 2, 3]
    assert (abs(counts - 1000) < 150).all()


@settings(max_examples=40)
@given(populations(), st.integers(0, 2**32 - 1))
def test_swaps_only_reorder_genes(drawn: tuple[Genes, int], seed: int) -> None:
    genes = drawn[0][0]
    rng = np.random.default_rng(seed)
    for changed in (swap_nodes(rng, genes, 0.1), swap_substrings(rng, genes)):
        assert sorted(changed.tolist()) == sorted(genes.tolist())


def test_substring_swap_never_returns_three_parts_in_their_old_order() -> None:
    rng = np.random.default_rng(2)
    genes = np.arange(7, dtype=np.int16)
    assert all(not np.array_equal(swap_substrings(rng, genes), genes) for _ in range(200))


def test_tournament_prefers_fitter_structures_as_its_size_says() -> None:
    rng = np.random.default_rng(3)
    fitness = np.arange(10, dtype=np.float64)
    winners = Operators(tournament=3).select(rng, fitness, 20_000)
    # The best of ten is among three draws with chance 1 - 0.9**3.
    assert abs((winners == 9).mean() - (1 - 0.9**3)) < 0.01
    assert abs((winners == 0).mean() - 0.1**3) < 0.002


def test_breeding_is_a_function_of_the_generator_alone() -> None:
    population = random_structures(np.random.default_rng(4), 20, 4, 5, 0.2)
    fitness = np.linspace(0, 1, 20)
    first, again, other = (
        Operators().breed(np.random.default_rng(seed), population, fitness, 15, 5)
        for seed in (5, 5, 6)
    )
    assert first.shape == (15, 15)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_without_crossover_and_mutation_children_are_copies_of_parents() -> None:
    population = random_structures(np.random.default_rng(4), 20, 4, 5, 0.2)
    operators = Operators(crossover_rate=0.0, mutation_rate=0.0)
    children = operators.breed(np.random.default_rng(0), population, np.zeros(20), 30, 5)
    assert set(keys(children)) <= set(keys(population))


@pytest.mark.parametrize("depth", [1, 2])
def test_short_structures_can_be_bred(depth: int) -> None:
    population = random_structures(np.random.default_rng(4), 6, depth, 3, 0.0)
    operators = Operators(mutation_rate=1.0)
    children = operators.breed(np.random.default_rng(0), population, np.zeros(6), 7, 3)
    assert children.shape == (7, gene_count(depth))
    assert children.max() < 3


def test_survivors_are_the_fittest_distinct_structures() -> None:
    population = np.array([[0], [1], [0], [2], [LEAF]], dtype=np.int16)
    fitness = np.array([0.5, 0.9, 0.5, np.nan, 0.7])
    assert survivors(population, fitness, 3).tolist() == [1, 4, 0]
    assert survivors(population, fitness, 2).tolist() == [1, 4]


def test_elite_survives_whatever_its_fitness() -> None:
    population = np.array([[0], [1], [2], [3]], dtype=np.int16)
    fitness = np.array([0.1, 0.9, 0.8, 0.7])
    elite = keys(population[:1])
    assert survivors(population, fitness, 2, elite).tolist() == [1, 0]
    assert survivors(population, fitness, 1, elite).tolist() == [0]
