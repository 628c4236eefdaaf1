"""Dataclasses as bytes: what a coordinator keeps between rounds.

A record's fields are numbers, texts, bytes, enums, other dataclasses, tuples, sets and mappings of
these, ``None`` where the type allows it, and arrays declared as in
:mod:`hedgerow.boosting.payloads` or of any elements. Arrays are named by their number,
everything else is JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Annotated, Any, ClassVar, Self, TypeVar

import numpy as np
import safetensors
import safetensors.numpy
import zstandard
from numpy.typing import NDArray

from hedgerow.boosting.checks import read_as
from hedgerow.boosting.errors import FOREIGN, DataError
from hedgerow.boosting.payloads import Elements

Record = TypeVar("Record")

MAX_BYTES = 1 << 31
"""Most bytes of a checkpoint, unpacked."""
MAX_ROUNDS = 1 << 20
"""Most rounds of a checkpoint."""
_ABOUT = "about"
Whole = Annotated[int, range(MAX_ROUNDS + 1)]
"""A count or a round."""


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Raise DataError, which names ``what``, for anything that reading malformed bytes raises."""
    try:
        yield
    except (*FOREIGN, safetensors.SafetensorError, zstandard.ZstdError) as error:
        raise DataError(f"expected {what}, received other bytes") from error


def array(arrays: Mapping[str, NDArray[Any]], name: str, dtype: str, ndim: int = 1) -> NDArray[Any]:
    """Return a named array of an element type and a number of dimensions."""
    found = arrays[name]
    if found.dtype != np.dtype(dtype) or found.ndim != ndim:
        raise DataError(f"{name}: expected {ndim}-dimensional {dtype}")
    return found


def whole(value: object, most: int = MAX_ROUNDS) -> int:
    """Return a count or a round, at least 0."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise DataError(f"expected a number from 0 to {most}")
    return value


def dump(arrays: Mapping[str, NDArray[Any]], about: Mapping[str, object]) -> bytes:
    """Return arrays and values as a compressed safetensors file.

    Parameters
    ----------
    arrays : Mapping
        Arrays of any element type but texts and objects.
    about : Mapping
        What JSON can write, without NaN and infinity; kept in the file's metadata.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(about, allow_nan=False)
    return zstandard.compress(safetensors.numpy.save(contiguous, {_ABOUT: text}))


def load(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return what :func:`dump` was given; anything else raises what :func:`readable` knows."""
    if not 0 <= zstandard.frame_content_size(data) <= MAX_BYTES:
        raise DataError(f"expected a checkpoint of at most {MAX_BYTES} bytes")
    plain = zstandard.decompress(data)
    # The library returns the metadata of files only: its format is a length and a JSON header.
    n_bytes = int.from_bytes(plain[:8], "little")
    metadata = json.loads(plain[8 : 8 + n_bytes])["__metadata__"]
    return safetensors.numpy.load(plain), json.loads(metadata[_ABOUT])


def dump_record(record: object) -> bytes:
    """Return a dataclass as a checkpoint; :func:`load_record` reads it."""
    arrays: dict[str, NDArray[Any]] = {}
    return dump(arrays, _plain(record, arrays))


def load_record(kind: type[Record], data: bytes, what: str) -> Record:
    """Return the dataclass of :func:`dump_record`; raises DataError, which names ``what``."""
    with readable(what):
        arrays, about = load(data)
        record: Record = _value(kind, about, arrays)
        return record


class Stored:
    """A dataclass that is stored; ``what`` names it in errors."""

    __slots__ = ()
    what: ClassVar[str]

    def encode(self) -> bytes:
        """Return the record as bytes."""
        return dump_record(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the record of :meth:`encode`; raises DataError for anything else."""
        return load_record(cls, data, cls.what)


def _plain(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[str(len(arrays))] = value
        return str(len(arrays) - 1)
    if dataclasses.is_dataclass(value):
        named = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: _plain(each, arrays) for name, each in named}
    if isinstance(value, Mapping):
        return [[_plain(key, arrays), _plain(each, arrays)] for key, each in value.items()]
    if isinstance(value, tuple | frozenset):
        return [_plain(each, arrays) for each in (value if type(value) is tuple else sorted(value))]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.generic):
        value = value.item()
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _value(kind: Any, plain: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, typing.NewType):
        return _value(kind.__supertype__, plain, arrays)
    if origin is Annotated and isinstance(inner[1], Elements):
        return array(arrays, plain, inner[1].dtype, inner[1].ndim)
    if origin is Annotated:
        return whole(plain, inner[1][-1])
    if origin is np.ndarray:
        return arrays[plain]
    if origin in (types.UnionType, typing.Union):
        return None if plain is None else _value(inner[0], plain, arrays)
    if origin in (tuple, frozenset):
        return origin(_value(inner[0], each, arrays) for each in plain)
    if origin in (dict, Mapping):
        return {_value(inner[0], k, arrays): _value(inner[1], v, arrays) for k, v in plain}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind, include_extras=True)
        names = [field.name for field in dataclasses.fields(kind)]
        given = (name for name in names if name in plain)  # an older version's has no later fields
        return kind(**{name: _value(hints[name], plain[name], arrays) for name in given})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    if kind is bytes:
        return bytes.fromhex(plain)
    return float(plain) if kind is float and isinstance(plain, str) else read_as(kind, plain)
