"""The search over structures, apart from who scores them: one generation after another.

A search never scores a structure twice unless told to: fitness is remembered by canonical form,
and a *brood* is children of a generation that are new. All functions are pure but for the generator
handed in.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.trees.genetics import (
    Genes,
    Operators,
    first_of_each,
    keys,
    random_structures,
    survivors,
)

BREEDINGS = 10
"""Times that a generation is bred to find children which are new."""


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """What a search has found so far.

    Parameters
    ----------
    population : ndarray of shape (n_structures, n_genes), int16
        Fittest first.
    fitness : ndarray of shape (n_structures,), float64
        Greater is better.
    known : Mapping[bytes, float]
        Latest fitness of every structure ever scored, by canonical form.
    elite : tuple of bytes
        Canonical forms that are never given up.
    stale : int
        Generations since the best fitness last rose.
    """

    population: Genes
    fitness: NDArray[np.float64]
    known: Mapping[bytes, float] = field(default_factory=dict)
    elite: tuple[bytes, ...] = ()
    stale: int = 0

    @property
    def best(self) -> float:
        """The best fitness, -inf before the first generation is scored."""
        return float(self.fitness[0]) if self.fitness.size else -np.inf

    @property
    def n_scored(self) -> int:
        """Number of distinct structures scored so far."""
        return len(self.known)


@dataclass(frozen=True, slots=True, eq=False)
class Brood:
    """Children of a generation.

    Parameters
    ----------
    to_score : ndarray of shape (n_children, n_genes), int16
        Structures whose score is asked for: distinct canonical forms.
    """

    to_score: Genes


def empty_generation(n_genes: int, elite: Genes | None = None) -> Generation:
    """Return the generation before the first, with the structures that must never be lost."""
    nothing = np.empty((0, n_genes), dtype=np.int16)
    forms = () if elite is None else tuple(dict.fromkeys(keys(elite)))
    return Generation(nothing, np.empty(0), {}, forms)


def first_brood(
    rng: np.random.Generator,
    proposed: Genes,
    size: int,
    n_features: int,
    depth: int,
    leaf_share: float,
) -> Brood:
    """Return the silos' own structures without repeats, and random ones up to ``size``.

    More own structures than ``size`` are all kept this once.
    """
    own = proposed[first_of_each(proposed)] if proposed.size else proposed
    missing = max(0, size - own.shape[0])
    random = random_structures(rng, missing, depth, n_features, leaf_share)
    children = np.concatenate([own, random])
    children = children[first_of_each(children)]
    return Brood(children)


def next_brood(
    rng: np.random.Generator,
    generation: Generation,
    operators: Operators,
    size: int,
    n_features: int,
    newcomers: Genes,
    rescore: bool,
) -> Brood:
    """Return new children of the present population, and structures of silos that have just come.

    Structures that were scored before are bred again, so that a brood is ``size`` new children
    until there are hardly any left.

    Parameters
    ----------
    newcomers : ndarray of shape (n_newcomers, n_genes), int16
    rescore : bool
        Whether the parents are scored again with the children.
    """
    met = set(generation.known)
    children: list[Genes] = []

    def admit(bred: Genes, most: int) -> None:
        for genes, key in zip(bred, keys(bred), strict=True):
            if key not in met and len(children) < most:
                met.add(key)
                children.append(genes)

    admit(newcomers, newcomers.shape[0])
    wanted = size + len(children)
    for _ in range(BREEDINGS):
        if len(children) >= wanted:
            break
        parents, fitness = generation.population, generation.fitness
        admit(operators.breed(rng, parents, fitness, size, n_features), wanted)
    brood = np.array(children, dtype=np.int16).reshape(-1, generation.population.shape[1])
    return Brood(np.concatenate([generation.population, brood]) if rescore else brood)


def absorb(
    generation: Generation, brood: Brood, scores: NDArray[np.float64], size: int
) -> Generation:
    """Return the next generation: the fittest of parents and children.

    Parameters
    ----------
    scores : ndarray of shape (n_children,), float64
        Fitness of ``brood.to_score``; NaN where no silo has scored.
    """
    scored = {
        key: float(value)
        for key, value in zip(keys(brood.to_score), scores, strict=True)
        if not np.isnan(value)
    }
    known = {**generation.known, **scored}
    everyone = np.concatenate([generation.population, brood.to_score])
    fitness = np.array([known.get(key, np.nan) for key in keys(everyone)])
    chosen = survivors(everyone, fitness, size, generation.elite)
    following = replace(
        generation, population=everyone[chosen], fitness=fitness[chosen], known=known
    )
    risen = following.best > generation.best
    return replace(following, stale=0 if risen else generation.stale + 1)


def pack(generation: Generation, brood: Brood) -> dict[str, NDArray[Any]]:
    """Return a generation and its brood as named arrays, for a checkpoint."""
    n_genes = generation.population.shape[1]
    forms = b"".join(generation.known)
    return {
        "population": generation.population,
        "fitness": generation.fitness,
        "known": np.frombuffer(forms, dtype=np.int16).reshape(-1, n_genes),
        "known_fitness": np.array(list(generation.known.values()), dtype=np.float64),
        "elite": np.frombuffer(b"".join(generation.elite), dtype=np.int16).reshape(-1, n_genes),
        "stale": np.array([generation.stale], dtype=np.int64),
        "to_score": brood.to_score,
    }


def unpack(arrays: Mapping[str, NDArray[Any]]) -> tuple[Generation, Brood]:
    """Return what :func:`pack` packed."""
    known = np.asarray(arrays["known"], dtype=np.int16)
    elite = np.asarray(arrays["elite"], dtype=np.int16)
    fitness = np.asarray(arrays["known_fitness"], dtype=np.float64)
    return (
        Generation(
            np.asarray(arrays["population"], dtype=np.int16),
            np.asarray(arrays["fitness"], dtype=np.float64),
            {form.tobytes(): float(f) for form, f in zip(known, fitness, strict=True)},
            tuple(form.tobytes() for form in elite),
            int(arrays["stale"][0]),
        ),
        Brood(np.asarray(arrays["to_score"], dtype=np.int16)),
    )


def to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return named arrays as one compressed file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def from_bytes(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of :func:`to_bytes`; refuses pickles."""
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}
