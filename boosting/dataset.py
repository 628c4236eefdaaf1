"""A silo's table in memory: its schema, its features as float32, its labels as float64."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class Task(Enum):
    """What is predicted."""

    BINARY = "binary"
    MULTICLASS = "multiclass"
    REGRESSION = "regression"


@dataclass(frozen=True, slots=True)
class Feature:
    """A column: its name, and its category list when it is categorical (codes are positions)."""

    name: str
    categories: tuple[str, ...] | None = None

    @property
    def is_categorical(self) -> bool:
        """Whether values are codes into ``categories``."""
        return self.categories is not None


@dataclass(frozen=True, slots=True)
class Schema:
    """What every silo of a horizontal job must agree on.

    Parameters
    ----------
    features : tuple[Feature, ...]
        Ordered.
    label : str
        Name of the label column; empty for a passive party.
    task : Task
    n_classes : int
        2 for binary, the size of the global class list for multiclass, 0 for regression.
    """

    features: tuple[Feature, ...]
    label: str
    task: Task
    n_classes: int

    @property
    def names(self) -> tuple[str, ...]:
        """Feature names in order."""
        return tuple(feature.name for feature in self.features)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.features)

    @property
    def n_outputs(self) -> int:
        """Margins per row: the class count for multiclass, else one."""
        return self.n_classes if self.task is Task.MULTICLASS else 1

    @property
    def feature_types(self) -> list[str]:
        """XGBoost's type letters: ``"c"`` for categorical, ``"q"`` for numeric."""
        return ["c" if feature.is_categorical else "q" for feature in self.features]

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON form; equal digests mean equal schemas."""
        text = json.dumps(asdict(self) | {"task": self.task.value}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows of one party.

    Parameters
    ----------
    schema : Schema
    X : ndarray of shape (n_samples, n_features), float32
        C order. Missing is NaN; a categorical value is its code, an unknown category is NaN.
    y : ndarray of shape (n_samples,), float64, or None
        Class index or number; None where a party has no labels.
    weight : ndarray of shape (n_samples,), float64, or None
    ids : ndarray of shape (n_samples,), object (str), or None
        Row identifiers of a vertical party.
    """

    schema: Schema
    X: NDArray[np.float32]
    y: NDArray[np.float64] | None = None
    weight: NDArray[np.float64] | None = None
    ids: NDArray[np.object_] | None = None

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def labels(self) -> NDArray[np.float64]:
        """The labels of a party that must have them."""
        assert self.y is not None, "this party holds no labels"
        return self.y

    def take(self, rows: NDArray[np.intp]) -> Dataset:
        """Return the rows at ``rows``, in that order."""
        return Dataset(
            self.schema,
            np.ascontiguousarray(self.X[rows]),
            None if self.y is None else self.y[rows],
            None if self.weight is None else self.weight[rows],
            None if self.ids is None else self.ids[rows],
        )
