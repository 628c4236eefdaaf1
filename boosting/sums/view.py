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
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from hedgerow.boosting.exchange import ExchangeKey
from hedgerow.boosting.payloads import LATER
from hedgerow.crypto.masking.masks import Ring

_DOMAIN = "hedgerow view v1"
_INTEGERS = (int, np.integer, np.bool_)
_FLOATS = (float, np.floating)
_head = struct.Struct(">cQ").pack


def state_digest(*state: object) -> bytes:
    """Return the SHA-256 of values in one canonical encoding.

    Parameters
    ----------
    *state : objects
        None, numbers, texts, bytes, enums, arrays, dataclasses, and tuples, lists and mappings of
        these. A mapping is encoded in the order of its keys.
    """
    out: list[bytes] = []
    for value in state:
        _put(value, out)
    return hashlib.sha256(b"".join(out)).digest()


def sum_view(
    job: bytes, step: str, at: ExchangeKey, n_values: int, ring: Ring, state: bytes
) -> bytes:
    """Return the view of one sum, 32 bytes.

    Parameters
    ----------
    state : bytes
        The strategy's :func:`state_digest`.
    """
    place = (at.round, at.level, at.passing)
    return state_digest(_DOMAIN, job, step, *place, n_values, ring, state)


def _put(value: Any, out: list[bytes]) -> int:
    """Append a letter, the length of the rest (8 bytes, big-endian), and the rest.

    Returns the number of all these bytes.
    """
    # Names of columns, of which a wide table's state has many, are no enums: that is slow to ask.
    if type(value) is not str and isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        letter, raw = b"s", value.encode()
    elif isinstance(value, _INTEGERS):
        letter, raw = b"i", b"%d" % int(value)
    elif isinstance(value, _FLOATS):
        letter, raw = b"f", struct.pack(">d", value)
    elif isinstance(value, bytes):
        letter, raw = b"b", value
    elif value is None:
        letter, raw = b"n", b""
    else:
        return _put_list(*_members(value), out)
    out += (_head(letter, len(raw)), raw)
    return 9 + len(raw)


def _members(value: Any) -> tuple[bytes, Iterable[Any]]:
    if isinstance(value, tuple | list):
        return b"l", value
    if isinstance(value, np.ndarray):
        little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        return b"a", (little.dtype.str, *little.shape, little.tobytes())
    if isinstance(value, Mapping):
        return b"l", [part for key in sorted(value) for part in (key, value[key])]
    if is_dataclass(value):
        own = [(field, getattr(value, field.name)) for field in fields(value)]
        return b"l", [part for field, part in own if LATER not in field.metadata or part]
    raise TypeError(f"a view has no {type(value).__name__}")


def _put_list(letter: bytes, values: Iterable[Any], out: list[bytes]) -> int:
    at = len(out)
    out.append(b"")
    n_bytes = sum([_put(value, out) for value in values])
    out[at] = _head(letter, n_bytes)
    return 9 + n_bytes
