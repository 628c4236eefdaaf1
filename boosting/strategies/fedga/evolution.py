"""The search over structures, apart from who scores them: one generation after another.

A search scores no structure twice, unless ``rescore_parents`` is set: fitness is kept by canonical
form, and a *brood* is children of a generation that are new. All functions are pure but for the
generator passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.checkpoints import Whole
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.payloads import Float64s
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedga.steps import UNIT
from hedgerow.boosting.trees.genetics import (
    Genes,
    decision_nodes,
    first_of_each,
    keys,
    random_structures,
    survivors,
)

Floats = NDArray[np.float64]

BREEDINGS = 10
"""Times that a generation is bred to find children which are new."""

SMALLEST = 0.5 / UNIT
"""Smaller errors count as this one."""


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """What a search has found so far."""

    population: Genes
    """Of shape (n_structures, n_genes), int16. Fittest first."""
    fitness: Float64s
    """Of shape (n_structures,), float64. Greater is better."""
    known: Mapping[bytes, float] = field(default_factory=dict)
    """Latest fitness of every structure ever scored, by canonical form."""
    elite: tuple[bytes, ...] = ()
    """Canonical forms that always survive."""
    stale: Whole = 0
    """Generations since the best fitness last rose."""

    @property
    def best(self) -> float:
        """The best fitness, -inf before the first generation is scored."""
        return float(self.fitness[0]) if self.fitness.size else -np.inf

    @property
    def n_scored(self) -> int:
        """Number of distinct structures scored so far."""
        return len(self.known)


def fitness(scores: Floats, structures: Genes, node_cost: float, task: Task) -> Floats:
    """Return how fit structures are, greater is better: their scores less what nodes cost.

    Of errors it is the logarithm that counts, so that a node must improve any error by the same
    share.

    Parameters
    ----------
    scores : ndarray of shape (n_structures,), float64
        F1, or mean squared error over the label variance.
    structures : ndarray of shape (n_structures, n_genes), int16
    """
    if task is Task.REGRESSION:
        scores = -np.log(np.maximum(scores, SMALLEST))
    return np.asarray(scores - node_cost * decision_nodes(structures), dtype=np.float64)


def scores_of(generation: Generation, node_cost: float, task: Task) -> Floats:
    """Return the mean scores of a population, F1 or relative errors: fitness without costs."""
    found = generation.fitness + node_cost * decision_nodes(generation.population)
    return np.asarray(np.exp(-found) if task is Task.REGRESSION else found)


def empty_generation(n_genes: int, elite: Genes | None = None) -> Generation:
    """Return the generation before the first, with the structures that always survive."""
    nothing = np.empty((0, n_genes), dtype=np.int16)
    forms = () if elite is None else tuple(dict.fromkeys(keys(elite)))
    return Generation(nothing, np.empty(0), {}, forms)


def first_brood(
    rng: np.random.Generator, parameters: FedGA, proposed: Genes, n_features: int, depth: int
) -> Genes:
    """Return the silos' own structures without repeats, and random ones up to ``population``.

    More own structures than that are all kept this once.
    """
    own = proposed[first_of_each(proposed)] if proposed.size else proposed
    missing = max(0, parameters.population - own.shape[0])
    random = random_structures(rng, missing, depth, n_features, parameters.leaf_share)
    children = np.concatenate([own, random])
    return children[first_of_each(children)]


def next_brood(
    rng: np.random.Generator,
    parameters: FedGA,
    generation: Generation,
    n_features: int,
    newcomers: Genes,
) -> Genes:
    """Return new children of the present population, and structures of silos that have joined.

    Children that were scored before are bred again, so that a brood has ``population`` new
    children until hardly any are left.

    Parameters
    ----------
    newcomers : ndarray of shape (n_newcomers, n_genes), int16

    Returns
    -------
    ndarray of shape (n_children, n_genes), int16
        Distinct canonical forms; the parents first where they are scored again.
    """
    met = set(generation.known)
    children: list[Genes] = []

    def admit(bred: Genes, most: int) -> None:
        for genes, key in zip(bred, keys(bred), strict=True):
            if key not in met and len(children) < most:
                met.add(key)
                children.append(genes)

    admit(newcomers, newcomers.shape[0])
    size, parents = parameters.population, generation.population
    enough = size + len(children)
    for _ in range(BREEDINGS):
        if len(children) >= enough:
            break
        bred = parameters.operators.breed(rng, parents, generation.fitness, size, n_features)
        admit(bred, enough)
    brood = np.array(children, dtype=np.int16).reshape(-1, parents.shape[1])
    return np.concatenate([parents, brood]) if parameters.rescore_parents else brood


def absorb(generation: Generation, brood: Genes, found: Floats, size: int) -> Generation:
    """Return the next generation: the ``size`` fittest of parents and children.

    Parameters
    ----------
    found : ndarray of shape (n_children,), float64
        Fitness of the brood; NaN where no silo has scored.
    """
    scored = {
        key: float(value)
        for key, value in zip(keys(brood), found, strict=True)
        if not np.isnan(value)
    }
    known = {**generation.known, **scored}
    everyone = np.concatenate([generation.population, brood])
    fit = np.array([known.get(key, np.nan) for key in keys(everyone)])
    chosen = survivors(everyone, fit, size, generation.elite)
    following = replace(generation, population=everyone[chosen], fitness=fit[chosen], known=known)
    risen = following.best > generation.best
    return replace(following, stale=0 if risen else generation.stale + 1)
