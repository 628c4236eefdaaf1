"""What the two halves store: named arrays in the safetensors format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from hedgerow.boosting.checkpoints import array, readable, whole
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.strategies.histogram.steps import CutPoints, OpeningTerms, TrainingState

Arrays = dict[str, NDArray[Any]]
_WHAT = "a record of a histogram job"


@dataclass(frozen=True, slots=True)
class RoundCheckpoint:
    """All that the coordinator half needs to go on from the next round.

    Parameters
    ----------
    round : int
        The next round.
    best_round, best_score
        Of the validation rows so far.
    state : TrainingState or None
        ``None`` with a blind coordinator.
    """

    round: int
    best_round: int
    best_score: float
    state: TrainingState | None

    def encode(self) -> bytes:
        """Return the record as bytes."""
        arrays = _numbers(round=self.round, best_round=self.best_round)
        arrays["best_score"] = np.array([self.best_score], np.float64)
        if self.state is not None:
            arrays |= {"model": self.state.model, **_terms(self.state.terms)}
        return _save(arrays)

    @classmethod
    def decode(cls, data: bytes) -> RoundCheckpoint:
        """Read :meth:`encode`; raises DataError for anything else."""
        with readable(_WHAT):
            arrays = safetensors.numpy.load(data)
            state = _read_state(arrays) if "model" in arrays else None
            score = float(arrays["best_score"][0])
            best = whole(_number(arrays, "best_round"))
            return cls(whole(_number(arrays, "round")), best, score, state)


@dataclass(frozen=True, slots=True)
class BegunRound:
    """What a coordinator decided from the first sum of a round that has not ended.

    Parameters
    ----------
    round : int
    present : tuple[Silo, ...]
        Silos of that sum.
    model : ndarray of shape (n,), uint8
        The round's trees as if they were closed then, as ``model.ubj``.
    terms : OpeningTerms or None
        Of the first round, which no checkpoint precedes.
    """

    round: int
    present: tuple[Silo, ...]
    model: NDArray[np.uint8]
    terms: OpeningTerms | None

    def encode(self) -> bytes:
        """Return the record as bytes."""
        arrays = _numbers(round=self.round) | {"model": self.model}
        arrays["present"] = np.frombuffer(json.dumps(self.present).encode(), np.uint8)
        if self.terms is not None:
            arrays |= _terms(self.terms)
        return _save(arrays)

    @classmethod
    def decode(cls, data: bytes) -> BegunRound:
        """Read :meth:`encode`; raises DataError for anything else."""
        with readable(_WHAT):
            arrays = safetensors.numpy.load(data)
            present = tuple(Silo(name) for name in json.loads(arrays["present"].tobytes()))
            terms = _read_terms(arrays) if "base_score" in arrays else None
            model = array(arrays, "model", "|u1")
            return cls(whole(_number(arrays, "round")), present, model, terms)


def encode_state(round_: int, state: TrainingState) -> bytes:
    """Return the model that a silo of a blind job has after ``round_`` rounds."""
    arrays = _numbers(round=round_) | {"model": state.model} | _terms(state.terms)
    return _save(arrays)


def decode_state(data: bytes) -> tuple[int, TrainingState]:
    """Read :func:`encode_state`; raises DataError for anything else."""
    with readable(_WHAT):
        arrays = safetensors.numpy.load(data)
        return whole(_number(arrays, "round")), _read_state(arrays)


def _terms(terms: OpeningTerms) -> Arrays:
    return {
        **_numbers(n_rows=terms.n_rows, weight_exponent=terms.weight_exponent),
        "base_score": np.array([terms.base_score], np.float64),
        "cut_sizes": terms.cuts.sizes,
        "cut_values": terms.cuts.values,
    }


def _read_terms(arrays: Mapping[str, NDArray[Any]]) -> OpeningTerms:
    return OpeningTerms(
        _number(arrays, "n_rows"),
        _number(arrays, "weight_exponent"),
        float(arrays["base_score"][0]),
        CutPoints(array(arrays, "cut_sizes", "<i8"), array(arrays, "cut_values", "<f4")),
    )


def _read_state(arrays: Mapping[str, NDArray[Any]]) -> TrainingState:
    return TrainingState(array(arrays, "model", "|u1"), _read_terms(arrays))


def _numbers(**values: int) -> Arrays:
    return {name: np.array([value], np.int64) for name, value in values.items()}


def _number(arrays: Mapping[str, NDArray[Any]], name: str) -> int:
    return int(array(arrays, name, "<i8")[0])


def _save(arrays: Arrays) -> bytes:
    data: bytes = safetensors.numpy.save(arrays)
    return data
