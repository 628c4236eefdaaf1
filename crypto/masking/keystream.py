"""Keystreams: AES-256 in counter mode as little-endian words, added to or subtracted from vectors.

Layout. The keystream of a 32-byte key is AES-256-CTR from the counter block ``0^96 || 2`` (big
endian), which is the keystream of AES-256-GCM under the all-zero nonce. Byte ``b`` of it belongs
to word ``b // w`` of a vector of ``w``-byte words (4 for uint32, 8 for uint64), little-endian. A
key is used for one vector only, so the fixed nonce never repeats under a key.

The bytes are taken from the GCM encryption of zeros, not from CTR: OpenSSL has a vectorised (VAES)
path for GCM and none for CTR, which makes it about twice as fast in spite of the tag, which is
discarded. Assumption: AES-256 is a pseudo-random permutation; 2**32 - 2 blocks are the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hedgerow.crypto.masking.fields import BitFields

CHUNK_BYTES = 1 << 18  # zeros, keystream and the vector's chunk stay in the second-level cache
LIMIT_BYTES = 16 * ((1 << 32) - 2)

_NONCE = bytes(12)
_ZEROS = np.zeros(CHUNK_BYTES, dtype=np.uint8)


def keystream(key: bytes, n_bytes: int) -> bytes:
    """Return the first ``n_bytes`` of the keystream of a 32-byte ``key``."""
    encryptor = Cipher(algorithms.AES256(key), modes.GCM(_NONCE)).encryptor()
    return encryptor.update(bytes(n_bytes))


def apply_keystreams(
    into: NDArray[np.unsignedinteger],
    add: Sequence[bytes] = (),
    subtract: Sequence[bytes] = (),
    fields: BitFields | None = None,
) -> None:
    """Add and subtract the keystreams of 32-byte keys to a vector of words, in place.

    Parameters
    ----------
    into : ndarray of shape (n,), uint32 or uint64, C-contiguous
        Wraps around modulo ``2**32`` or ``2**64``.
    add, subtract : sequences of bytes
        Keys. All keystreams of a chunk are applied before the next chunk is touched, so that the
        vector is read from memory once, however many keys there are.
    fields : BitFields or None
        Of a packed vector, whose fields are rings of their own.
    """
    if into.dtype not in (np.uint32, np.uint64) or not into.flags.c_contiguous or into.ndim != 1:
        raise ValueError("expected a contiguous vector of uint32 or uint64")
    if into.nbytes > LIMIT_BYTES:
        raise ValueError(f"{into.nbytes} bytes exceed the {LIMIT_BYTES} of one keystream")
    put: Callable[..., Callable[[Any, Any, int], None]] = _put if fields is None else fields.put
    signed_keys = [(key, True) for key in add] + [(key, False) for key in subtract]
    streams = [
        (Cipher(algorithms.AES256(key), modes.GCM(_NONCE)).encryptor(), put(plus=plus))
        for key, plus in signed_keys
    ]
    words_a_chunk = CHUNK_BYTES // into.itemsize
    scratch = np.empty(min(CHUNK_BYTES, into.nbytes), dtype=np.uint8)
    little = into.dtype.newbyteorder("<")
    for start in range(0, into.size, words_a_chunk):
        part = into[start : start + words_a_chunk]
        zeros, stream = _ZEROS[: part.nbytes], scratch[: part.nbytes]
        words = stream.view(little)
        for encryptor, put_in in streams:
            encryptor.update_into(zeros.data, stream.data)
            put_in(part, words, start)


def _put(*, plus: bool) -> Callable[[Any, Any, int], None]:
    kernel = np.add if plus else np.subtract
    return lambda into, words, start: kernel(into, words, out=into)
