"""How a payload's arrays are declared, so that a codec can carry and check them.

A payload is a frozen dataclass. Its fields are numbers, texts, bytes, enums, other such
dataclasses, tuples or mappings of these, ``None`` where the type allows it, and arrays::

    edges: Annotated[NDArray[np.float32], Elements("<f4", 1)]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import OfferRejected

Payload = TypeVar("Payload")
Number = TypeVar("Number", bound="np.number[Any]")


@dataclass(frozen=True, slots=True)
class Elements:
    """Element type (numpy type string) and number of dimensions of an array field."""

    dtype: str
    ndim: int
    also: tuple[str, ...] = ()
    """Other element types that the array may have; it travels in its own."""


Bits = Annotated[NDArray[np.bool_], Elements("|b1", 1)]
Bytes1 = Annotated[NDArray[np.uint8], Elements("|u1", 1)]
Int64s = Annotated[NDArray[np.int64], Elements("<i8", 1)]
Int32s = Annotated[NDArray[np.int32], Elements("<i4", 1)]
LATER = "later"
"""Mark of a dataclass' field that views have only where it is set, as those of earlier versions."""

UInt32s = Annotated[NDArray[np.uint32], Elements("<u4", 1)]
UInt16s = Annotated[NDArray[np.uint16], Elements("<u2", 1)]
Float32s = Annotated[NDArray[np.float32], Elements("<f4", 1)]
Float64s = Annotated[NDArray[np.float64], Elements("<f8", 1)]
Float64Table = Annotated[NDArray[np.float64], Elements("<f8", 2)]


def checked(name: str, array: NDArray[Number], shape: tuple[int | None, ...]) -> NDArray[Number]:
    """Return a peer's array if it has a shape and finite numbers.

    Parameters
    ----------
    shape : tuple
        ``None`` for a dimension of any length.

    Raises
    ------
    OfferRejected
        Another shape, or a number that is not finite.
    """
    if len(array.shape) != len(shape) or any(
        expected not in (None, length) for expected, length in zip(shape, array.shape, strict=True)
    ):
        text = "×".join("any" if length is None else str(length) for length in shape)
        found = "×".join(map(str, array.shape))
        raise OfferRejected(f"{name}: expected shape {text}, received {found}")
    if not np.isfinite(array).all():
        raise OfferRejected(f"{name}: expected finite numbers")
    return array


class PayloadCodec(Protocol):
    """Payloads as bytes and back, for what is sealed before it travels."""

    def dump(self, payload: object) -> bytes:
        """Return a payload as bytes."""
        ...

    def load(self, kind: type[Payload], data: bytes) -> Payload:
        """Return the payload of :meth:`dump`.

        Raises
        ------
        OfferRejected
            The bytes are no such payload.
        """
        ...
