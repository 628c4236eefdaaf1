"""Obfuscators: the random n-th residues that make Paillier ciphertexts unreadable.

Each is made once and used once. Two sources serve two roles:

========================== ============================ =========================================
role                       class                        distribution
========================== ============================ =========================================
key holder, encrypting     ``KeyHolderObfuscators``     uniform n-th residue up to 2^-64
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
"""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
import weakref
from abc import ABC, abstractmethod
from concurrent.futures import Future
from functools import partial

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.arithmetic.modular import FixedBases, Residues
from hedgerow.crypto.ciphers.paillier_keys import PrivateKey, PublicKey
from hedgerow.crypto.threads import aside

_SLACK_BITS = 128
# What is made ahead takes about as long, on any kernel and with any key.
_SECONDS_AHEAD = 0.05


class Obfuscators(ABC):
    """A source of obfuscators of one key; safe to use from several threads.

    Who has taken some will soon take as many again, so C kernels make these meanwhile, or as many
    of them as a few hundredths of a second suffice for. A forked process has none of them.
    """

    def __init__(self, public_key: PublicKey, engine: Engine | None) -> None:
        self.key_id = public_key.key_id
        self._engine = engine or Engine()
        self._square = self._engine.modulus(mpz(public_key.n) ** 2)
        self._seconds_each = math.inf
        self._begin()
        _sources.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._ahead: Future[Residues] | None = None

    def take(self, n: int) -> Residues:
        """Return ``n`` new obfuscators as residues modulo n²."""
        with self._lock:
            ahead, self._ahead = self._ahead, None
        # Where it has not begun, other keys' work is before it: waiting would take longer.
        ready = self._square.ones(0) if ahead is None or ahead.cancel() else ahead.result()
        ready = self._filled(ready, n)
        if self._engine.kernel != "gmpy2":
            n_next = min(n, int(_SECONDS_AHEAD / self._seconds_each))
            with self._lock:
                if self._ahead is None:
                    self._ahead = aside(partial(self._filled, ready[n:], n_next))
        return ready[:n]

    def _filled(self, ready: Residues, n: int) -> Residues:
        missing = n - len(ready)
        if missing <= 0:
            return ready
        began = time.perf_counter()
        made = self._make(missing)
        self._seconds_each = (time.perf_counter() - began) / missing
        return np.concatenate([ready, made])

    @abstractmethod
    def _make(self, n: int) -> Residues:
        """Return ``n`` new obfuscators, made now."""


_sources: weakref.WeakSet[Obfuscators] = weakref.WeakSet()


def _begin() -> None:
    for source in _sources:
        source._begin()


# A forked process must not give what its parent gives, nor wait for threads that it lacks.
os.register_at_fork(after_in_child=_begin)


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
            n_bases = _rows_for(prime.bit_length())
            roots = [1 + secrets.randbelow(int(prime) - 1) for _ in range(n_bases)]
            bases = modulus.to_ints(modulus.power(modulus.from_ints(roots), int(prime)))
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
            self._tables[0].modulus.all_products(wanted), self._tables, self._lift, strict=True
        ):
            residues = self._square.load(table.modulus.store(products))
            lifted.append(self._square.multiply(residues, lift))
        return self._square.add(*lifted)


class UniformObfuscators(Obfuscators):
    """Uniform n-th residues modulo n², made without the factors of n.

    The first ones are full powers r^n. A table of independent bases makes each at some eight times
    the speed, and costs (|n| + 128)/8 full powers (272 at 2048 bits, and 36 MB): it is made when
    more than these have been asked for.
    Serves every key, also imported ones whose factors have an unknown form.
    """

    def __init__(self, public_key: PublicKey, engine: Engine | None = None) -> None:
        super().__init__(public_key, engine)
        self._n = mpz(public_key.n)
        self._n_taken = 0
        self._table: FixedBases | None = None

    def _begin(self) -> None:
        super()._begin()
        self._table_lock = threading.Lock()

    def take(self, n: int) -> Residues:
        """Return ``n`` new obfuscators, from a table once it costs no more than they all would."""
        rows = _rows_for(self._n.bit_length())
        with self._table_lock:
            self._n_taken += n
            if self._table is None and self._n_taken > rows:
                self._table = FixedBases(
                    self._square, self._square.to_ints(self._full_powers(rows))
                )
        return super().take(n)

    def _full_powers(self, n: int) -> Residues:
        roots = [_random_unit(self._n) for _ in range(n)]
        return self._square.power(self._square.from_ints(roots), self._n)

    def _make(self, n: int) -> Residues:
        if self._table is None:
            return self._full_powers(n)
        return self._table.products(_random_digits(n, len(self._table.bases)))


def _random_unit(n: int) -> mpz:
    """Return a uniform invertible residue modulo n."""
    while True:
        x = mpz(secrets.randbelow(int(n)))
        if gmpy2.gcd(x, n) == 1:
            return x
