"""A party's secret in a private set intersection: ids are hashed to the curve and raised to it.

Ids are hashed by RFC 9380 ``curve25519_XMD:SHA-512_ELL2_NU_`` of (tag | session | id) and
multiplied x-only (RFC 7748) by a clamped 255-bit secret of one run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from hedgerow.crypto.arithmetic.curve25519 import hash_uniform
from hedgerow.crypto.arithmetic.curve_kernels import CurveKernel
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.errors import InvalidPoint, PsiRefused

DST = b"HEDGEROW-V01-PSI-with-curve25519_XMD:SHA-512_ELL2_NU_"
POINT_BYTES = 32


class Blinder(Protocol):
    """Holds a party's secret of one run."""

    def blind_identifiers(self, ids: Sequence[bytes]) -> bytes:
        """Hash ids to the curve and raise them to the secret, 32 bytes an id."""
        ...

    def blind_points(self, points: bytes) -> bytes:
        """Raise points to the secret; `InvalidPoint` for those that it cannot."""
        ...

    def close(self) -> None:
        """Erase the secret."""
        ...


class LocalBlinder:
    """A secret in this process.

    Parameters
    ----------
    session : bytes
        Names the run; part of what is hashed.
    """

    def __init__(self, session: bytes, kernel: CurveKernel | None = None) -> None:
        if len(session) > 0xFFFF:
            raise ValueError(f"a session of at most 65535 bytes expected, received {len(session)}")
        self._prefix = len(session).to_bytes(2, "big") + session
        self._kernel = kernel or Engine().curve()
        self._scalar = bytearray(os.urandom(32))

    def blind_identifiers(self, ids: Sequence[bytes]) -> bytes:
        """See :meth:`Blinder.blind_identifiers`."""
        points = self._kernel.map_to_curve(hash_uniform(ids, DST, self._prefix))
        return self._kernel.multiply(points, self._secret())

    def blind_points(self, points: bytes) -> bytes:
        """See :meth:`Blinder.blind_points`."""
        if len(points) % POINT_BYTES:
            raise InvalidPoint(f"{POINT_BYTES} bytes a point expected, received {len(points)}")
        return self._kernel.multiply(points, self._secret())

    def _secret(self) -> bytes:
        if not any(self._scalar):
            raise PsiRefused("the secret of this run has been erased")
        return bytes(self._scalar)

    def close(self) -> None:
        """Overwrite the secret.

        Copies that Python made of it while it was in use live until they are collected.
        """
        self._scalar[:] = bytes(len(self._scalar))
