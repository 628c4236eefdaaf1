"""The coordinator's state of a search between rounds, and the result that it gives."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import numpy as np

from hedgerow.boosting import checkpoints
from hedgerow.boosting.checkpoints import readable
from hedgerow.boosting.dataset import Schema, Task
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.fedga.evolution import Generation, empty_generation, scores_of
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedga.steps import SearchPhase
from hedgerow.boosting.trees.genetics import LEAF, MAX_DEPTH, Genes, depth_of, resized

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters


STRUCTURES = "structures.json"


@dataclass(slots=True, eq=False)
class SearchState:
    """What the coordinator knows of a search."""

    generation: Generation = field(default_factory=lambda: empty_generation(1))
    brood: Genes = field(default_factory=lambda: np.empty((0, 1), dtype=np.int16))
    """Of shape (n_structures, n_genes), int16. Structures whose scores are due."""
    phase: SearchPhase = SearchPhase.VOTE
    round: checkpoints.Whole = 0
    """Generation whose scores are due."""
    depth: Annotated[int, range(MAX_DEPTH + 1)] = 0
    """Decision levels of every structure; 0 before the silos have voted on it."""
    full: bool = True
    """Whether silos fit and score on all rows."""
    rows: dict[Silo, int] = field(default_factory=dict)
    """Noisy row counts of the silos that have introduced themselves."""
    active: frozenset[Silo] = frozenset()
    """Silos that are drawn for this round."""
    test: dict[str, float] = field(default_factory=dict)
    """Means of the silos' test scores, at the end."""

    def encode(self) -> bytes:
        """Return the state as a checkpoint."""
        finite = {name: value for name, value in self.test.items() if math.isfinite(value)}
        return checkpoints.dump_record(replace(self, test=finite))

    @classmethod
    def decode(cls, data: bytes) -> SearchState:
        """Return the state of :meth:`encode`; raises DataError for anything else."""
        state = checkpoints.load_record(cls, data, "a checkpoint of FedGA")
        found = state.generation
        lengths = {genes.shape[1] * 2 for genes in (found.population, state.brood)}
        if len(lengths.union(map(len, (*found.known, *found.elite)))) > 1:
            raise DataError("expected structures of one length")
        return state


def artefact(parameters: FedGA, job: JobParameters, schema: Schema, checkpoint: bytes) -> Artefact:
    """Return the final structures with their scores; the trees are in the silos."""
    state = SearchState.decode(checkpoint)
    generation = state.generation
    scores = scores_of(generation, parameters.cost, job.task)
    names = schema.names
    document = {
        "format": 1,
        "strategy": parameters.name,
        "depth": depth_of(generation.population.shape[1]),
        "score": "mse over label variance" if job.task is Task.REGRESSION else parameters.metric,
        "structures_scored": generation.n_scored,
        "structures": [
            {
                "score": round(float(score), 6),
                "genes": [None if gene == LEAF else names[gene] for gene in genes],
            }
            for genes, score in zip(generation.population, scores, strict=True)
        ],
        "test": state.test,
    }
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    return Artefact({STRUCTURES: text.encode()}, STRUCTURES)


def structures_of(raw: bytes, schema: Schema, depth: int) -> Genes:
    """Return the structures of an earlier search's file at a depth; DataError for another file."""
    places = {None: LEAF} | {name: place for place, name in enumerate(schema.names)}
    with readable(f"{STRUCTURES} of a search over the job's columns"):
        genes = [[places[gene] for gene in one["genes"]] for one in json.loads(raw)["structures"]]
        return resized(np.array(genes, dtype=np.int16), depth)
