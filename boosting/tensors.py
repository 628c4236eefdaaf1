"""Named arrays: the payload of exchanges whose content a strategy defines by names and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import OfferRejected


@dataclass(frozen=True, slots=True)
class Tensors:
    """Arrays by name.

    Parameters
    ----------
    arrays : Mapping[str, ndarray]
        Element types that may travel: signed and unsigned integers, float32, float64, bool.
    """

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def get(
        self, name: str, dtype: str, shape: tuple[int | None, ...], *, finite: bool = True
    ) -> NDArray[Any]:
        """Return an array after checking what a peer could have got wrong.

        Parameters
        ----------
        dtype : str
            numpy type string, for example ``"<f4"``.
        shape : tuple
            ``None`` for a dimension of any length.

        Raises
        ------
        OfferRejected
            No such array, another type or shape, or a number that is not finite.
        """
        array = self.arrays.get(name)
        if array is None:
            raise OfferRejected(f"expected an array {name!r}, none came")
        if array.dtype != np.dtype(dtype):
            raise OfferRejected(f"array {name!r}: expected {dtype}, {array.dtype.str} came")
        if len(array.shape) != len(shape) or any(
            wanted not in (None, length) for wanted, length in zip(shape, array.shape, strict=True)
        ):
            text = "×".join("any" if length is None else str(length) for length in shape)
            raise OfferRejected(f"array {name!r}: expected shape {text}, {array.shape} came")
        if finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise OfferRejected(f"array {name!r} has numbers that are not finite")
        return array

    def number(self, name: str) -> float:
        """Return the only element of a float64 array."""
        return float(self.get(name, "<f8", (1,))[0])

    def has(self, name: str) -> bool:
        """Whether there is an array of this name."""
        return name in self.arrays


def scalar(value: float) -> NDArray[np.float64]:
    """Return a number as an array that travels."""
    return np.array([value], np.float64)
