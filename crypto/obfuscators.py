"""Obfuscators: the random n-th residues that make Paillier ciphertexts unreadable.

Each is made once and used once. A party may make them ahead, while it waits for others; what is
prepared lives in memory only, is dropped in a forked child (two processes must never use the same
one), and is never written, copied or sent.

Three sources, for three roles:

========================== ============================ =========================================
who                        class                        distribution
========================== ============================ =========================================
key holder, encrypting     ``KeyHolderObfuscators``     uniform n-th residue up to 2^-64
others, encrypting         ``PublicObfuscators``        power of h_s, indistinguishable by
                                                        Damgård–Jurik–Nielsen
others, answering the      ``UniformObfuscators``       uniform n-th residue up to 2^-64, also
key holder                                              for one who knows p and q
========================== ============================ =========================================

**Products of table entries.** A row of the table holds powers 0 to 255 of a random residue of its
own, and an obfuscator is the product of one random entry a row, with k rows for a group G of t bits
and 8k ≥ t + 128. Two strings of digits d, d' collide for random bases with probability
|G[gcd(d − d')]| / |G|, where G[e] are the elements of order dividing e; the gcd of hundreds of byte
differences exceeds 1 with negligible probability, so by the leftover hash lemma an obfuscator is
within 2^-64 of uniform on G, given the bases: nothing is assumed about p − 1 and q − 1, and every
further obfuscator adds another 2^-64. Powers of one base are no substitute: with h = −x² all of
them have Jacobi symbol +1, and where p − 1 has a small odd factor they may all lie in a subgroup of
that index, so that the key holder would read a bit or more of which rows went into an answer.

References
----------
R. Impagliazzo, L. Levin, M. Luby, "Pseudo-random generation from one-way functions", 1989 (leftover
hash lemma).
I. Damgård, M. Jurik, J. B. Nielsen, "A generalization of Paillier's public-key system with
applications to electronic voting", 2010, §4.1.
O. Goldreich, V. Rosen, "On the security of modular exponentiation with application to the
construction of pseudorandom generators", 2003 (half-length exponents).
"""

from __future__ import annotations

import os
import secrets
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NoReturn

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from hedgerow.crypto.modular import Engine, FixedBases, Modulus, Residues, all_products

if TYPE_CHECKING:
    from hedgerow.crypto.paillier import PrivateKey, PublicKey

_SLACK_BITS = 128
_LEAST_SHORT_EXPONENT_BITS = 224
# Below this many at once, full powers cost less than a table.
_LEAST_FOR_TABLE = 64


def random_unit(n: int) -> mpz:
    """Return a uniform invertible residue modulo n."""
    while True:
        x = mpz(secrets.randbelow(int(n)))
        if gmpy2.gcd(x, n) == 1:
            return x


class Obfuscators(ABC):
    """A source and a stock of obfuscators of one key; safe to use from several threads."""

    def __init__(self, public_key: PublicKey, engine: Engine | None) -> None:
        self.key_id = public_key.key_id
        self._engine = engine or Engine()
        self._square = self._engine.modulus(mpz(public_key.n) ** 2)
        self._lock = threading.Lock()
        self._stock: list[Residues] = []
        self._owner = os.getpid()

    def __reduce__(self) -> NoReturn:
        raise TypeError("obfuscators are used once and cannot be copied")

    @property
    def prepared(self) -> int:
        """How many are in stock."""
        with self._lock:
            return sum(len(part) for part in self._stock) if self._owner == os.getpid() else 0

    def prepare(self, n: int) -> None:
        """Make ``n`` more ahead of time."""
        fresh = self._make(n)
        with self._lock:
            self._forget_if_forked()
            self._stock.append(fresh)

    def take(self, n: int, modulus: Modulus | None = None) -> Residues:
        """Return ``n`` obfuscators that nobody had before, from stock, then new ones.

        Parameters
        ----------
        n
            How many.
        modulus
            The taker's arithmetic modulo n², to check that it has the same form.
        """
        if modulus is not None and type(modulus) is not type(self._square):
            raise ValueError("expected obfuscators and ciphertexts on one kernel")
        taken = []
        missing = n
        with self._lock:
            self._forget_if_forked()
            while missing and self._stock:
                part = self._stock.pop()
                if len(part) > missing:
                    self._stock.append(part[missing:])
                    part = part[:missing]
                taken.append(part)
                missing -= len(part)
        if missing or not taken:
            taken.append(self._make(missing))
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def _forget_if_forked(self) -> None:
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._stock.clear()

    @abstractmethod
    def _make(self, n: int) -> Residues:
        """Return n new obfuscators as residues modulo n²."""


def _random_digits(n: int, width: int) -> NDArray[np.uint8]:
    return np.frombuffer(os.urandom(n * width), np.uint8).reshape(n, width)


def _rows_for(bits: int) -> int:
    return -(-(bits + _SLACK_BITS) // 8)


class KeyHolderObfuscators(Obfuscators):
    """Uniform p-th residues mod p² and q-th residues mod q², joined by the remainder theorem.

    x^p mod p² for uniform x is distributed as r^n mod p² for uniform r, since
    gcd(q, p − 1) = 1. The two tables hold 2^8 · (|p| + 128)/8 residues each, 19 MB for both at
    2048 bits. Assumes nothing beyond what the ciphertexts themselves rest on.
    """

    def __init__(self, private_key: PrivateKey, engine: Engine | None = None) -> None:
        super().__init__(private_key.public_key, engine)
        p, q = mpz(private_key.p), mpz(private_key.q)
        self._tables = []
        for prime in (p, q):
            modulus = self._engine.modulus(prime**2)
            bases = [
                gmpy2.powmod(1 + secrets.randbelow(int(prime) - 1), prime, prime**2)
                for _ in range(_rows_for(prime.bit_length()))
            ]
            self._tables.append(FixedBases(modulus, bases))
        # Idempotents: 1 mod p² and 0 mod q², and the reverse.
        self._lift = [
            self._square.from_ints([q**2 * gmpy2.invert(q**2, p**2)]),
            self._square.from_ints([p**2 * gmpy2.invert(p**2, q**2)]),
        ]

    def _make(self, n: int) -> Residues:
        wanted = [(table, _random_digits(n, len(table.bases))) for table in self._tables]
        lifted = []
        for products, table, lift in zip(
            all_products(wanted), self._tables, self._lift, strict=True
        ):
            residues = self._square.load(table.modulus.store(products))
            lifted.append(self._square.multiply(residues, lift))
        return self._square.add(*lifted)


class PublicObfuscators(Obfuscators):
    """Powers of h_s, for parties that encrypt under someone else's key.

    Not for answers to the key holder, who can tell such powers apart: see
    :class:`UniformObfuscators`.

    Parameters
    ----------
    public_key
        A key with h_s.
    engine
        Kernel and cores.
    short_exponent_bits
        Off by default: exponents have half of the modulus' bits, which are indistinguishable from
        full ones if factoring is hard (Goldreich and Rosen). A number of bits (224 at least) takes
        shorter exponents and so **assumes** besides that discrete logarithms with exponents of this
        length are hard modulo n².
    """

    def __init__(
        self,
        public_key: PublicKey,
        engine: Engine | None = None,
        *,
        short_exponent_bits: int | None = None,
    ) -> None:
        super().__init__(public_key, engine)
        if public_key.h_s is None:
            raise ValueError("expected a key with h_s; for other keys use UniformObfuscators")
        bits = (public_key.bits + 1) // 2
        if short_exponent_bits is not None:
            if short_exponent_bits < _LEAST_SHORT_EXPONENT_BITS:
                raise ValueError(
                    f"expected exponents of at least {_LEAST_SHORT_EXPONENT_BITS} bits, "
                    f"received {short_exponent_bits}"
                )
            bits = min(bits, short_exponent_bits)
        self._table = FixedBases.radix_256(self._square, public_key.h_s, bits)

    def _make(self, n: int) -> Residues:
        return self._table.products(_random_digits(n, len(self._table.bases)))


class UniformObfuscators(Obfuscators):
    """Uniform n-th residues modulo n², made without the factors of n.

    The first few are full powers r^n; from 64 at once, a table of (|n| + 128)/8 independent bases
    (36 MB and a few hundred full powers at 2048 bits) makes each one at some eight times the speed.
    Serves every key, also imported ones whose factors have an unknown form.
    """

    def __init__(self, public_key: PublicKey, engine: Engine | None = None) -> None:
        super().__init__(public_key, engine)
        self._n = mpz(public_key.n)
        self._table: FixedBases | None = None
        self._table_lock = threading.Lock()

    def _full_powers(self, n: int) -> Residues:
        roots = [random_unit(self._n) for _ in range(n)]
        return self._square.power(self._square.from_ints(roots), self._n)

    def _make(self, n: int) -> Residues:
        with self._table_lock:
            if self._table is None and n >= _LEAST_FOR_TABLE:
                rows = _rows_for(self._n.bit_length())
                bases = self._square.to_ints(self._full_powers(rows))
                self._table = FixedBases(self._square, bases)
        if self._table is None:
            return self._full_powers(n)
        return self._table.products(_random_digits(n, len(self._table.bases)))
