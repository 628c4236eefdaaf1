"""The digest of what a silo computes its part of a sum from: its view.

Every seed of a sum's masks is derived from the view, so masks of silos with different views do not
cancel: a coordinator that asks one silo another question than the others opens noise. The view is
state that an honest silo has, no history: a silo that restarts or re-enters computes the same one.

``view = SHA-256(fields("hedgerow view v1", job digest, step, round, level, pass, length, ring,
state))`` where ``ring`` is its number of bits, or the widths and rows of all packed fields, and
``state`` is the strategy's own digest of the schema, the model so far, the open tree and all else
that steers its part. docs/wire.md has the encoding with vectors.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from hedgerow.boosting.exchange import Place
from hedgerow.crypto.masking import Ring

_DOMAIN = "hedgerow view v1"


def state_digest(*state: object) -> bytes:
    """Return the SHA-256 of values in one canonical encoding.

    Parameters
    ----------
    *state : objects
        None, numbers, texts, bytes, enums, arrays, dataclasses, and tuples, lists and mappings of
        these. A mapping is encoded in the order of its keys.
    """
    digest = hashlib.sha256()
    for value in state:
        for part in _encoded(value):
            digest.update(part)
    return digest.digest()


def sum_view(job: bytes, step: str, at: Place, n_values: int, ring: Ring, state: bytes) -> bytes:
    """Return the view of one sum, 32 bytes.

    Parameters
    ----------
    job : bytes
        Digest of the job.
    step : str
        Name of the kind of sum.
    state : bytes
        The strategy's :func:`state_digest`.
    """
    place = (at.round, at.level, at.passing)
    return state_digest(_DOMAIN, job, step, *place, n_values, ring, state)


def _encoded(value: Any) -> Iterator[bytes]:
    """Yield a letter, the length of the rest (8 bytes, big-endian) and the rest."""
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        yield _head(b"n", 0)
    elif isinstance(value, bool | int | np.integer | np.bool_):
        yield from _leaf(b"i", str(int(value)).encode())
    elif isinstance(value, float | np.floating):
        yield from _leaf(b"f", struct.pack(">d", float(value)))
    elif isinstance(value, str):
        yield from _leaf(b"s", value.encode())
    elif isinstance(value, bytes):
        yield from _leaf(b"b", value)
    elif isinstance(value, np.ndarray):
        little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        yield from _list(b"a", (little.dtype.str, *little.shape, little.tobytes()))
    elif isinstance(value, Mapping):
        yield from _list(b"l", [part for key in sorted(value) for part in (key, value[key])])
    elif isinstance(value, tuple | list):
        yield from _list(b"l", value)
    elif is_dataclass(value):
        yield from _list(b"l", [getattr(value, field.name) for field in fields(value)])
    else:
        raise TypeError(f"a view has no {type(value).__name__}")


def _head(letter: bytes, n_bytes: int) -> bytes:
    return letter + n_bytes.to_bytes(8, "big")


def _leaf(letter: bytes, raw: bytes) -> Iterator[bytes]:
    yield _head(letter, len(raw))
    yield raw


def _list(letter: bytes, values: tuple[Any, ...] | list[Any]) -> Iterator[bytes]:
    parts = [part for value in values for part in _encoded(value)]
    yield _head(letter, sum(map(len, parts)))
    yield from parts
