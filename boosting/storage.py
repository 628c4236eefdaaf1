"""Where a silo's rows live: bins in memory, in mapped files or on other machines; labels too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hedgerow.boosting.dataset import Dataset

Maker = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that a silo's half of a job takes for its rows."""

    held: int
    """What is in memory at the peak: labels, margins, gradients, nodes of rows."""
    bins: int = 0
    """One copy of the bins, which may be in a file instead; 0 where the strategy has no such
    file."""
    labels: int = 0
    """Part of ``held`` which may be in a file, too: labels and weights are read once a round."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Room for bins, and where they go when it is used up. No result depends on it."""

    room: int | None = None
    """Bytes in memory for bins; None for as many as it takes."""
    mapped: Maker = np.empty
    """Shape and dtype to an array in a file, whose pages the system may drop and read again."""
    elsewhere: Callable[..., Any] | None = None
    """A data set, cut points and the margin at which rows start to an
    ``engine.table.PartyRows`` whose bins are on other machines of the silo; None for this one."""
    maps_labels: bool = False
    """Whether labels and weights are in files, too."""

    def copies(self, n_bytes: int) -> int:
        """Return how many copies of bins of that size stay in memory: 2, 1 or 0."""
        return 2 if self.room is None else min(2, self.room // max(n_bytes, 1))

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array in memory, or in a file where it is larger than the room."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self.room is None or size <= self.room:
            return np.empty(shape, dtype)
        return self.mapped(shape, dtype)

    def placed(self, dataset: Dataset) -> Dataset:
        """Return a data set with labels and weights where they are to be."""
        if not self.maps_labels:
            return dataset
        return replace(dataset, y=self._copied(dataset.y), weight=self._copied(dataset.weight))

    def _copied(self, values: NDArray[Any] | None) -> NDArray[Any] | None:
        if values is None:
            return None
        out = self.mapped(values.shape, values.dtype)
        out[:] = values
        return out

    def share(self, n_rows: int, n_total: int) -> Storage:
        """Return the part of the room for some of the rows."""
        if self.room is None:
            return self
        return replace(self, room=self.room * n_rows // max(n_total, 1))


IN_MEMORY = Storage()
