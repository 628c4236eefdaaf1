"""Paillier and EC-ElGamal behind one shape, so that a vertical protocol can use either.

========== =================== ================== ==============================================
scheme     bytes a row         bytes a bin        for
========== =================== ================== ==============================================
paillier   512 (2048 bits)     512 over 10 to 22  exact sums of full-precision gradients
elgamal    96 for each class   96 for each class  quantised gradients: precision bits + log2
                                                  rows at most 40; several times as fast
========== =================== ================== ==============================================

A public key begins with its scheme's four letters. One of Paillier ends with the proof of its
modulus, which is verified when it is read.
"""

from __future__ import annotations

from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers import elgamal, paillier_keys
from hedgerow.crypto.ciphers.elgamal_roles import ElGamalOwner, ElGamalPeer
from hedgerow.crypto.ciphers.key_files import AnyPrivateKey
from hedgerow.crypto.ciphers.paillier_roles import PaillierOwner, PaillierPeer
from hedgerow.crypto.ciphers.roles import KeyOwner, PeerKey, Scheme
from hedgerow.crypto.errors import KeyRejected


def new_owner(
    scheme: Scheme, key_bits: int, engine: Engine | None, *, insecure_test_key: bool
) -> KeyOwner:
    """Make a private key."""
    if scheme == "elgamal":
        return owner_of(elgamal.generate_private_key(), engine)
    key = paillier_keys.generate_private_key(key_bits, insecure_test_key=insecure_test_key)
    return owner_of(key, engine)


def owner_of(private_key: AnyPrivateKey, engine: Engine | None) -> KeyOwner:
    """Return the owner of a stored key."""
    if isinstance(private_key, elgamal.ElGamalPrivateKey):
        return ElGamalOwner(private_key, engine)
    return PaillierOwner(private_key, engine)


def peer_of(public_key: bytes, engine: Engine | None, *, insecure_test_key: bool) -> PeerKey:
    """Read a public key as it travels.

    Raises
    ------
    KeyRejected
        Malformed, smaller than is safe, or its modulus is not proven.
    """
    if public_key.startswith(elgamal.PUBLIC_MAGIC):
        key = elgamal.ElGamalPublicKey.from_bytes(public_key[len(elgamal.PUBLIC_MAGIC) :])
        return ElGamalPeer(key, engine)
    read = paillier_keys.PublicKey.from_certified(public_key, insecure_test_key=insecure_test_key)
    return PaillierPeer(read, engine)


def check_kind(public_key: bytes, scheme: str, key_bits: int) -> None:
    """Refuse a key of another scheme, or of another length, than was agreed.

    Raises
    ------
    KeyRejected
    """
    expected = {"elgamal": elgamal.PUBLIC_MAGIC, "paillier": paillier_keys.PUBLIC_MAGIC}[scheme]
    if not public_key.startswith(expected):
        raise KeyRejected(f"expected a public key of {scheme}, received another")
    if scheme == "paillier" and paillier_keys.modulus_bits(public_key) != key_bits:
        raise KeyRejected(
            f"expected a modulus of {key_bits} bits, "
            f"received {paillier_keys.modulus_bits(public_key)}"
        )
