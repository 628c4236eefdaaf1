"""Curve25519 in its two shapes, in plain Python over gmpy2: the reference of the native kernels.

The Montgomery shape serves private set intersection: RFC 9380's
``curve25519_XMD:SHA-512_ELL2_NU_`` hash to the curve and x-only X25519. The twisted Edwards shape
serves EC-ElGamal: extended coordinates and the ristretto255 encoding of RFC 9496, which makes a
group of prime order out of a curve with cofactor eight.

Assumptions and limits: decisional Diffie-Hellman in the prime-order group, about 128 bits.
gmpy2's arithmetic, Python's branches and the table look-ups are *not* constant-time: someone who
can time this process, or share its caches, may learn about scalars. The X25519 multiplication of
the Python path is the `cryptography` package's, which is constant-time.

References
----------
RFC 7748 (X25519), RFC 9380 (hash to curve), RFC 9496 (ristretto255);
Hisil, Wong, Carter, Dawson 2008 (extended coordinates).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from gmpy2 import invert, jacobi, mpz, powmod

from hedgerow.crypto.errors import InvalidPoint

__all__ = [
    "BASE",
    "IDENTITY",
    "ORDER",
    "PRIME",
    "Point",
    "add",
    "batch_invert",
    "double",
    "hash_uniform",
    "map_to_curve",
    "multiply",
    "multiply_u",
    "negate",
    "ristretto_decode",
    "ristretto_encode",
]

PRIME: int = mpz(2) ** 255 - 19
ORDER: int = mpz(2) ** 252 + 27742317777372353535851937790883648493
"""Order of the prime-order subgroup, and of ristretto255."""

_MONTGOMERY_J = 486662
D: int = mpz(37095705934669439343138083508754565189542113879843219016388785533085940283555)
SQRT_M1: int = mpz(19681161376707505956807079304988542015446066515923890162744021073123829784752)
INVSQRT_A_MINUS_D: int = mpz(
    54469307008909316920995813868745141605393597292927456921205312896311721017578
)
HASH_BYTES = 48
"""Uniform bytes for one field element: ceil((255 + 128) / 8), RFC 9380 section 5.1."""

Point = tuple[int, int, int, int]
"""Extended coordinates (X, Y, Z, T) on -x² + y² = 1 + d·x²·y²; x = X/Z, y = Y/Z, T = X·Y/Z."""

_BASE_Y: int = 4 * invert(5, PRIME) % PRIME
_BASE_X: int = mpz(15112221349535400772501151409588531511454012693041857206046113283949847762202)
IDENTITY: Point = (mpz(0), mpz(1), mpz(1), mpz(0))
BASE: Point = (_BASE_X, _BASE_Y, mpz(1), _BASE_X * _BASE_Y % PRIME)


# --- hash to the curve ----------------------------------------------------------------------


def hash_uniform(messages: Iterable[bytes], dst: bytes, prefix: bytes = b"") -> bytes:
    """Expand many messages with SHA-512, 48 uniform bytes each (RFC 9380, section 5.3.1).

    The result is that of ``expand_message_xmd(prefix + m, dst, 48)`` for each message m. The
    padding and ``prefix`` are hashed once.
    """
    if not 1 <= len(dst) <= 255:
        raise ValueError(f"domain separation tag of 1 to 255 bytes expected, received {len(dst)}")
    sha512 = hashlib.sha512
    suffix = dst + bytes([len(dst)])
    outer = HASH_BYTES.to_bytes(2, "big") + b"\x00" + suffix
    inner = b"\x01" + suffix
    start = sha512(bytes(128) + prefix).copy
    blocks = []
    for message in messages:
        first = start()
        first.update(message + outer)
        blocks.append(sha512(first.digest() + inner).digest()[:HASH_BYTES])
    return b"".join(blocks)


def map_to_curve(uniform: bytes) -> bytes:
    """Map uniform bytes to u-coordinates of Curve25519 (never of its twist) by Elligator 2.

    Parameters
    ----------
    uniform : bytes
        48 bytes an element, big-endian, reduced modulo p (RFC 9380, ``hash_to_field``).

    Returns
    -------
    bytes
        32 bytes an element, little-endian. The cofactor is *not* cleared: a clamped X25519
        scalar, a multiple of eight, does that in the multiplication that follows.

    References
    ----------
    RFC 9380, sections 5.2 and 6.7.1 (Z = 2, J = 486662, K = 1).
    """
    if len(uniform) % HASH_BYTES:
        raise ValueError(f"{HASH_BYTES} bytes an element expected, received {len(uniform)} bytes")
    p, j = PRIME, _MONTGOMERY_J
    denominators = []
    for i in range(0, len(uniform), HASH_BYTES):
        r = mpz(int.from_bytes(uniform[i : i + HASH_BYTES], "big")) % p
        denominators.append((2 * r * r + 1) % p)
    out = []
    for inverse in batch_invert(denominators):
        x = -j * inverse % p
        if jacobi(x * (x * (x + j) % p + 1) % p, p) < 0:
            x = (-x - j) % p
        out.append(int(x).to_bytes(32, "little"))
    return b"".join(out)


def multiply_u(points: bytes, scalar: bytes) -> bytes:
    """Multiply u-coordinates by one clamped scalar (X25519, RFC 7748).

    Parameters
    ----------
    points : bytes
        32 bytes an element; the top bit is ignored as RFC 7748 asks.
    scalar : bytes
        32 bytes, clamped here.

    Raises
    ------
    InvalidPoint
        If a product is zero, so that the point had small order.
    """
    if len(points) % 32:
        raise ValueError(f"32 bytes a point expected, received {len(points)} bytes")
    exchange = X25519PrivateKey.from_private_bytes(scalar).exchange
    load = X25519PublicKey.from_public_bytes
    try:
        return b"".join(
            [exchange(load(points[i : i + 32])) for i in range(0, len(points), 32)],
        )
    except ValueError as error:
        raise InvalidPoint("a point of small order: its product is zero") from error


# --- Edwards points -------------------------------------------------------------------------


def batch_invert(values: Sequence[int]) -> list[int]:
    """Invert field elements with one inversion for all (Montgomery's trick); none may be zero."""
    p = PRIME
    products = []
    product = mpz(1)
    for value in values:
        products.append(product)
        product = product * value % p
    inverse = invert(product, p)
    out = [mpz(0)] * len(values)
    for i in range(len(values) - 1, -1, -1):
        out[i] = inverse * products[i] % p
        inverse = inverse * values[i] % p
    return out


def add(a: Point, b: Point) -> Point:
    """Add two points (complete formula "add-2008-hwcd-3" for a = -1)."""
    p = PRIME
    x1, y1, z1, t1 = a
    x2, y2, z2, t2 = b
    m = (y1 - x1) * (y2 - x2) % p
    n = (y1 + x1) * (y2 + x2) % p
    c = t1 * t2 % p * (2 * D) % p
    d = 2 * z1 * z2 % p
    e, f, g, h = n - m, d - c, d + c, n + m
    return e * f % p, g * h % p, f * g % p, e * h % p


def double(a: Point) -> Point:
    """Double a point ("dbl-2008-hwcd" for a = -1)."""
    p = PRIME
    x, y, z, _ = a
    xx, yy = x * x % p, y * y % p
    h = xx + yy
    e = h - (x + y) ** 2
    g = xx - yy
    f = 2 * z * z + g
    return e * f % p, g * h % p, f * g % p, e * h % p


def negate(a: Point) -> Point:
    """Give the inverse of a point."""
    x, y, z, t = a
    return PRIME - x, y, z, PRIME - t


def multiply(scalar: int, a: Point) -> Point:
    """Multiply a point by a scalar in 0 .. 2^256 with windows of four bits; not constant-time."""
    table = [IDENTITY, a]
    for _ in range(14):
        table.append(add(table[-1], a))
    out = IDENTITY
    for shift in range(252, -1, -4):
        for _ in range(4):
            out = double(out)
        digit = int(scalar >> shift) & 15
        if digit:
            out = add(out, table[digit])
    return out


# --- ristretto255 ---------------------------------------------------------------------------


def _invsqrt(v: int) -> tuple[bool, int]:
    """Give (v is a square, non-negative 1/sqrt(v) or 1/sqrt(i·v)); RFC 9496 ``SQRT_RATIO_M1``."""
    p = PRIME
    v3 = v * v % p * v % p
    r = v3 * powmod(v3 * v3 % p * v % p, (p - 5) // 8, p) % p
    check = v * r % p * r % p
    was_square = check in (1, p - 1)
    if check in (p - 1, p - SQRT_M1):
        r = r * SQRT_M1 % p
    return was_square, p - r if r & 1 else r


def ristretto_decode(encoding: bytes) -> Point:
    """Decode 32 bytes into a point that represents the element (RFC 9496, section 4.3.1).

    Raises
    ------
    InvalidPoint
        If the bytes are not the one canonical encoding of an element.
    """
    p = PRIME
    s = mpz(int.from_bytes(encoding, "little"))
    if len(encoding) != 32 or s >= p or s & 1:
        raise InvalidPoint("not a canonical ristretto255 encoding")
    ss = s * s % p
    u1, u2 = (1 - ss) % p, (1 + ss) % p
    u2_squared = u2 * u2 % p
    v = (-D * u1 % p * u1 - u2_squared) % p
    was_square, inverse = _invsqrt(v * u2_squared % p)
    den_x = inverse * u2 % p
    den_y = inverse * den_x % p * v % p
    x = 2 * s * den_x % p
    if x & 1:
        x = p - x
    y = u1 * den_y % p
    t = x * y % p
    if not was_square or t & 1 or y == 0:
        raise InvalidPoint("not an encoding of a ristretto255 element")
    return x, y, mpz(1), t


def ristretto_encode(point: Point) -> bytes:
    """Encode the element that a point represents into 32 canonical bytes (RFC 9496, 4.3.2)."""
    p = PRIME
    x0, y0, z0, t0 = point
    u1 = (z0 + y0) * (z0 - y0) % p
    u2 = x0 * y0 % p
    _, inverse = _invsqrt(u1 * u2 % p * u2 % p)
    den1, den2 = inverse * u1 % p, inverse * u2 % p
    z_inverse = den1 * den2 % p * t0 % p
    if t0 * z_inverse % p & 1:
        x, y, den = y0 * SQRT_M1 % p, x0 * SQRT_M1 % p, den1 * INVSQRT_A_MINUS_D % p
    else:
        x, y, den = x0, y0, den2
    if x * z_inverse % p & 1:
        y = p - y
    s = den * (z0 - y) % p
    return int(p - s if s & 1 else s).to_bytes(32, "little")
