"""How a payload's arrays are declared, so that a codec can carry and check them.

A payload is a frozen dataclass. Its fields are numbers, texts, bytes, enums, other such
dataclasses, tuples or mappings of these, ``None`` where the type allows it, and arrays::

    edges: Annotated[NDArray[np.float32], Elements("<f4", 1)]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Elements:
    """Element type (numpy type string) and number of dimensions of an array field.

    Parameters
    ----------
    also : tuple of str
        Other element types that the array may have; it travels in its own.
    """

    dtype: str
    ndim: int
    also: tuple[str, ...] = ()


Bits = Annotated[NDArray[np.bool_], Elements("|b1", 1)]
Bytes1 = Annotated[NDArray[np.uint8], Elements("|u1", 1)]
Int64s = Annotated[NDArray[np.int64], Elements("<i8", 1)]
Int32s = Annotated[NDArray[np.int32], Elements("<i4", 1)]
UInt64s = Annotated[NDArray[np.uint64], Elements("<u8", 1)]
UInt32s = Annotated[NDArray[np.uint32], Elements("<u4", 1)]
UInt16s = Annotated[NDArray[np.uint16], Elements("<u2", 1)]
Float32s = Annotated[NDArray[np.float32], Elements("<f4", 1)]
Float64s = Annotated[NDArray[np.float64], Elements("<f8", 1)]
Float64Table = Annotated[NDArray[np.float64], Elements("<f8", 2)]


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
