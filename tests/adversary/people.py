"""Holders of certificates of one federation: operators, admins, silos, a coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hedgerow.services.identity.authority import issue, new_authority
from hedgerow.services.identity.certificates import IdentityPaths, Role, write
from hedgerow.services.identity.peers import FileIdentity


class People:
    """A CA whose key is in memory only, and identities in folders under ``folder``."""

    def __init__(self, folder: Path, federation: str = "fed") -> None:
        self.folder = folder
        self._key, self._root = new_authority(federation, time.time())

    def make(
        self, place: str, role: Role, name: str, *hosts: str, seconds: float = 30 * 86400.0
    ) -> Path:
        """Write an identity, valid for ``seconds`` from now, into ``place``; return its folder."""
        folder = self.folder / place
        paths, key = IdentityPaths.of(folder), ec.generate_private_key(ec.SECP256R1())
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
        write(paths.key, key.private_bytes(*form, serialization.NoEncryption()))
        certificate = issue(
            self._key, self._root, key.public_key(), role, name,
            now=time.time() - (30 * 86400.0 - seconds), days=30, hosts=hosts,
        )  # fmt: skip
        write(paths.certificate, certificate)
        write(paths.roots, self._root.public_bytes(serialization.Encoding.PEM))
        return folder

    def identity(
        self, role: Role, name: str, clock: Callable[[], float] = time.time
    ) -> FileIdentity:
        """Return an identity that signs and checks."""
        return FileIdentity(IdentityPaths.of(self.make(f"{role}/{name}", role, name)), clock)
