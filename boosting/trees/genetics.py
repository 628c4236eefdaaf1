"""Tree structures as strings of integers, and the genetic operators that search them.

A *structure* is a binary tree without thresholds and leaves: the feature that each decision node
tests. It is written as ``2**depth - 1`` genes, one for each decision node of the full binary tree
in pre-order; a gene is a feature index or :data:`LEAF`. The node at position ``i`` with ``h``
levels left (itself included) has its left child at ``i + 1`` and its right child at
``i + 2**(h - 1)``. Genes below a leaf are *detached*: they change no prediction, and a mutation
above can connect them again. The *canonical* form has them erased.

References
----------
A. Tran et al., FedGA-Tree: Federated Decision Tree using Genetic Algorithm, section III.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.payloads import Elements

Genes = Annotated[NDArray[np.int16], Elements("<i2", 2)]
"""One structure, shape (n_genes,), or a population of them, shape (n_structures, n_genes)."""

LEAF = -1
"""The gene of a leaf, or of a node that does not exist."""

MAX_DEPTH = 10
"""Deepest structure: 1,023 genes."""


def gene_count(depth: int) -> int:
    """Return the length of the structures of ``depth`` decision levels."""
    return (1 << depth) - 1


def depth_of(n_genes: int) -> int:
    """Return the number of decision levels that ``n_genes`` genes encode.

    Raises
    ------
    ValueError
        No full binary tree has that many decision nodes.
    """
    depth = (n_genes + 1).bit_length() - 1
    if depth < 1 or depth > MAX_DEPTH or gene_count(depth) != n_genes:
        raise ValueError(
            f"expected the genes of a full binary tree of 1 to {MAX_DEPTH} levels, received "
            f"{n_genes}"
        )
    return depth


@lru_cache(maxsize=MAX_DEPTH)
def _parents(depth: int) -> tuple[int, ...]:
    """Return each position's parent in pre-order; the root's is -1."""
    parent = [-1] * gene_count(depth)
    open_nodes = [(0, depth)]
    while open_nodes:
        position, levels = open_nodes.pop()
        if levels > 1:
            for child in (position + 1, position + (1 << (levels - 1))):
                parent[child] = position
                open_nodes.append((child, levels - 1))
    return tuple(parent)


def canonical(population: Genes) -> Genes:
    """Return the structures with detached genes set to :data:`LEAF`.

    Two structures fit the same tree to every table exactly when their canonical forms are equal.

    Parameters
    ----------
    population : ndarray of shape (n_structures, n_genes), int16

    Returns
    -------
    ndarray of shape (n_structures, n_genes), int16
        A new array.
    """
    erased = population.copy()
    for position, parent in enumerate(_parents(depth_of(population.shape[1]))):
        if parent >= 0:
            erased[erased[:, parent] == LEAF, position] = LEAF
    return erased


def resized(population: Genes, depth: int) -> Genes:
    """Return structures of ``depth`` levels: what is below is cut off, or leaves."""
    found = np.full((len(population), gene_count(depth)), LEAF, dtype=np.int16)
    open_nodes = [(0, depth_of(population.shape[1]), 0, depth)]
    while open_nodes:
        old, old_levels, new, levels = open_nodes.pop()
        found[:, new] = population[:, old]
        if old_levels > 1 and levels > 1:
            open_nodes += [
                (old + 1, old_levels - 1, new + 1, levels - 1),
                (
                    old + (1 << (old_levels - 1)),
                    old_levels - 1,
                    new + (1 << (levels - 1)),
                    levels - 1,
                ),
            ]
    return found


def decision_nodes(population: Genes) -> NDArray[np.int64]:
    """Return the number of connected decision nodes of each structure."""
    counts: NDArray[np.int64] = (canonical(population) != LEAF).sum(axis=1)
    return counts


def keys(population: Genes) -> list[bytes]:
    """Return a dictionary key of each structure, equal where canonical forms are equal."""
    erased = np.ascontiguousarray(canonical(population))
    return [genes.tobytes() for genes in erased]


def first_of_each(population: Genes) -> NDArray[np.intp]:
    """Return the positions, ascending, of the structures that differ from all earlier ones."""
    seen: set[bytes] = set()
    kept: list[int] = []
    for position, key in enumerate(keys(population)):
        if key not in seen:
            seen.add(key)
            kept.append(position)
    return np.array(kept, dtype=np.intp)


def random_structures(
    rng: np.random.Generator, count: int, depth: int, n_features: int, leaf_share: float
) -> Genes:
    """Return structures with genes drawn uniformly from the features, some turned into leaves.

    Parameters
    ----------
    leaf_share : float in [0, 1)
        Share of the genes below the root that become leaves.

    Returns
    -------
    ndarray of shape (count, 2**depth - 1), int16
    """
    n_genes = gene_count(depth)
    population = rng.integers(0, n_features, size=(count, n_genes)).astype(np.int16)
    n_leaves = round(leaf_share * (n_genes - 1))
    for genes in population:
        genes[1 + rng.permutation(n_genes - 1)[:n_leaves]] = LEAF
    return population


def cross(rng: np.random.Generator, mother: Genes, father: Genes) -> tuple[Genes, Genes]:
    """Return both children of a one-point crossover; a structure of one gene is copied."""
    n_genes = mother.shape[0]
    if n_genes < 2:
        return mother.copy(), father.copy()
    cut = int(rng.integers(1, n_genes))
    return (
        np.concatenate([mother[:cut], father[cut:]]),
        np.concatenate([father[:cut], mother[cut:]]),
    )


def flip_nodes(rng: np.random.Generator, genes: Genes, n_features: int, share: float) -> Genes:
    """Return the structure with ``ceil(share * n_genes)`` genes changed to something else.

    Each chosen gene becomes, with equal chance, any other feature or :data:`LEAF`.
    """
    n_genes = genes.shape[0]
    chosen = rng.permutation(n_genes)[: max(1, int(np.ceil(share * n_genes)))]
    # Draw from the n_features other values: those at or above the present one move up.
    drawn = rng.integers(LEAF, n_features - 1, size=chosen.shape[0], endpoint=False)
    flipped = genes.copy()
    flipped[chosen] = drawn + (drawn >= genes[chosen])
    return flipped


def swap_nodes(rng: np.random.Generator, genes: Genes, share: float) -> Genes:
    """Return the structure after ``ceil(share * n_genes)`` exchanges of two random genes."""
    n_genes = genes.shape[0]
    swapped = genes.copy()
    if n_genes < 2:
        return swapped
    for _ in range(max(1, int(np.ceil(share * n_genes)))):
        i, j = rng.choice(n_genes, size=2, replace=False)
        swapped[i], swapped[j] = swapped[j], swapped[i]
    return swapped


def swap_substrings(rng: np.random.Generator, genes: Genes) -> Genes:
    """Return the structure cut into three non-empty parts in another order."""
    n_genes = genes.shape[0]
    if n_genes < 3:
        return genes.copy()
    first, second = np.sort(rng.choice(np.arange(1, n_genes), size=2, replace=False))
    parts = (genes[:first], genes[first:second], genes[second:])
    orders = ((0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
    return np.concatenate([parts[k] for k in orders[rng.integers(len(orders))]])


@dataclass(frozen=True, slots=True)
class Operators:
    """How parents are chosen and children changed."""

    tournament: int = 3
    """Structures drawn, with replacement, for each tournament; the fittest becomes a parent."""
    crossover_rate: float = 0.8
    mutation_rate: float = 0.3
    """Float in [0, 1]. ``crossover_rate`` and ``mutation_rate``: chance of a pair to be crossed,
    and of a child to be mutated by one operator."""
    flip_share: float = 0.1
    swap_share: float = 0.1
    """Float in (0, 1]. ``flip_share`` and ``swap_share``: genes flipped, and exchanges made, as a
    share of the structure's length."""

    def mutate(self, rng: np.random.Generator, genes: Genes, n_features: int) -> Genes:
        """Return the structure changed by one operator, drawn uniformly of those that apply."""
        n_genes = genes.shape[0]
        operator = rng.integers(3 if n_genes >= 3 else 1)
        if operator == 0:
            return flip_nodes(rng, genes, n_features, self.flip_share)
        if operator == 1:
            return swap_nodes(rng, genes, self.swap_share)
        return swap_substrings(rng, genes)

    def select(
        self, rng: np.random.Generator, fitness: NDArray[np.float64], count: int
    ) -> NDArray[np.intp]:
        """Return the positions of ``count`` tournament winners; greater fitness wins.

        A tie goes to the structure drawn first.
        """
        drawn = rng.integers(0, fitness.shape[0], size=(count, self.tournament))
        winner = np.argmax(fitness[drawn], axis=1)
        chosen: NDArray[np.intp] = drawn[np.arange(count), winner].astype(np.intp)
        return chosen

    def breed(
        self,
        rng: np.random.Generator,
        population: Genes,
        fitness: NDArray[np.float64],
        count: int,
        n_features: int,
    ) -> Genes:
        """Return ``count`` children of tournament winners.

        Parameters
        ----------
        population : ndarray of shape (n_structures, n_genes), int16
        fitness : ndarray of shape (n_structures,), float64
            Greater is better.
        """
        parents = population[self.select(rng, fitness, count + count % 2)]
        children: list[Genes] = []
        for mother, father in zip(parents[0::2], parents[1::2], strict=True):
            pair = (mother, father)
            if rng.random() < self.crossover_rate:
                pair = cross(rng, mother, father)
            for child in pair:
                mutated = rng.random() < self.mutation_rate
                children.append(self.mutate(rng, child, n_features) if mutated else child)
        return np.array(children[:count], dtype=np.int16).reshape(count, population.shape[1])


def survivors(
    population: Genes,
    fitness: NDArray[np.float64],
    size: int,
    elite: Sequence[bytes] = (),
) -> NDArray[np.intp]:
    """Return the positions of the ``size`` fittest distinct structures, fittest first.

    Parameters
    ----------
    population : ndarray of shape (n_structures, n_genes), int16
        Parents and children; the first of equal structures is kept.
    fitness : ndarray of shape (n_structures,), float64
        Greater is better; NaN (never scored) does not survive.
    elite : sequence of bytes
        :func:`keys` of structures that survive at any fitness.
    """
    distinct = first_of_each(population)
    distinct = distinct[~np.isnan(fitness[distinct])]
    ranked = distinct[np.argsort(-fitness[distinct], kind="stable")]
    if not elite:
        return ranked[:size]
    kept = set(elite)
    is_elite = np.array([key in kept for key in keys(population[ranked])], dtype=np.bool_)
    room = max(0, size - int(is_elite.sum()))
    others = np.flatnonzero(~is_elite)[:room]
    chosen = np.sort(np.concatenate([np.flatnonzero(is_elite), others]))
    best: NDArray[np.intp] = ranked[chosen]
    return best
