"""Many numbers in one plaintext: gradient pairs, classes, and the bins of an answer.

A row's plaintext is g·2^{W_h} + h, with g and h in fixed point, g signed and h not negative; the
pairs of several classes lie side by side, S = W_g + W_h bits each. Sums of rows are sums of
plaintexts. An answer puts many bins into one ciphertext, c ← c^{2^B}·next with B bits a bin, so
that its first bin ends most significant. The room above is filled with random bits, all but 64.
Reading back takes the lowest B bits, centred around zero, and borrows from what is above where they
are negative. No offsets, so no row counts travel.

Widths come from the exact largest sums: W_g holds ±(rows · max |g|) and W_h holds rows · max h, so
that nothing can overflow into its neighbour; a value above its bound is refused before encryption.

References
----------
K. Cheng et al., "SecureBoost: a lossless federated learning framework", 2021. W. Chen et al.,
"SecureBoost+: large scale and high-performance vertical federated gradient boosting decision tree",
2021, §4 (packing, cipher compressing, multi-output trees).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.errors import PackingRefused, PlaintextOutOfRange

MAX_FRACTION_BITS = 52
MAX_ROWS = 1 << 40
MAX_CLASSES = 1 << 16
_INT64_BITS = 63
CHECKED_BITS = 64
"""Zeros on top of a packed plaintext: by them its reader notices one of another key."""


def usable_bits(key_bits: int) -> int:
    """Return how many bits a packed plaintext may have, so that its magnitude is below n // 3."""
    return key_bits - 2


@dataclass(frozen=True, slots=True)
class PairLayout:
    """Where gradients and hessians lie in a plaintext.

    Made by :meth:`fit`; both sides need equal layouts, which are three integers and a count.
    """

    fraction_bits: int
    """s: a value x is stored as rint(x · 2^s)."""
    largest_grad: int
    largest_hess: int
    """``largest_grad`` and ``largest_hess``: largest magnitude of a row's stored g and h."""
    n_rows: int
    """Largest number of rows in a sum."""
    n_classes: int = 1
    """Pairs side by side in a plaintext."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction_bits <= MAX_FRACTION_BITS:
            raise PackingRefused(
                f"expected 0 to {MAX_FRACTION_BITS} fraction bits, received {self.fraction_bits}; "
                "divide numbers that are too large by a power of ten"
            )
        if not (1 <= self.n_rows <= MAX_ROWS and 1 <= self.n_classes <= MAX_CLASSES):
            raise PackingRefused(
                f"expected 1 to {MAX_ROWS} rows and 1 to {MAX_CLASSES} classes, "
                f"received {self.n_rows} and {self.n_classes}"
            )
        for name, largest in (("grad", self.largest_grad), ("hess", self.largest_hess)):
            if not 0 < largest < 1 << 62:
                raise PackingRefused(f"expected the largest {name} · 2^s in [1, 2^62)")

    @classmethod
    def fit(
        cls,
        *,
        n_rows: int,
        max_abs_grad: float,
        max_hess: float,
        fraction_bits: int = 32,
        n_classes: int = 1,
    ) -> PairLayout:
        """Return the layout of given bounds, in the gradients' own units.

        Raises
        ------
        PackingRefused
            A bound is not finite or not positive, or leaves 62 bits with this precision.
        """
        if not (math.isfinite(max_abs_grad) and math.isfinite(max_hess)):
            raise PackingRefused("expected finite bounds of gradients and hessians")
        if max_abs_grad <= 0 or max_hess <= 0:
            raise PackingRefused("expected positive bounds of gradients and hessians")
        # The bound itself must be storable, and rint never rounds above the rounded-up bound.
        scale = 1 << min(max(fraction_bits, 0), MAX_FRACTION_BITS)
        return cls(
            fraction_bits,
            math.ceil(max_abs_grad * scale),
            math.ceil(max_hess * scale),
            n_rows,
            n_classes,
        )

    @property
    def value_bits(self) -> int:
        """Bits of the largest stored g or h, sign apart."""
        return (max(self.largest_grad, self.largest_hess) - 1).bit_length()

    @property
    def grad_bits(self) -> int:
        """W_g: two's complement width of the largest sum of g."""
        return (self.n_rows * self.largest_grad).bit_length() + 1

    @property
    def hess_bits(self) -> int:
        """W_h: width of the largest sum of h."""
        return (self.n_rows * self.largest_hess).bit_length()

    @property
    def pair_bits(self) -> int:
        """S: width of a pair."""
        return self.grad_bits + self.hess_bits

    @property
    def bin_bits(self) -> int:
        """Width of the pairs of all classes."""
        return self.n_classes * self.pair_bits

    def check_key(self, key_bits: int) -> None:
        """Refuse a layout whose pairs of all classes do not fit one plaintext."""
        if self.bin_bits > usable_bits(key_bits):
            raise PackingRefused(
                f"{self.n_classes} pairs of {self.pair_bits} bits need {self.bin_bits} bits, "
                f"a key of {key_bits} bits holds {usable_bits(key_bits)}"
            )

    def slots(self, key_bits: int) -> int:
        """Return how many bins one ciphertext of an answer holds."""
        self.check_key(key_bits)
        return usable_bits(key_bits) // self.bin_bits

    def spare_bits(self, count: int, key_bits: int) -> int:
        """Return how many bits above ``count`` bins are filled at random; the rest stays zero."""
        return max(usable_bits(key_bits) - CHECKED_BITS - count * self.bin_bits, 0)

    def quantise(
        self, grad: NDArray[np.float64], hess: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return stored values, each of shape (n, n_classes), int64, units of 2^-s.

        Raises
        ------
        PackingRefused
            A value is not finite, negative where it must not be, or above its bound.
        """
        wide = np.ndim(grad) == 2 and np.shape(grad)[1] == self.n_classes
        flat = np.ndim(grad) == 1 and self.n_classes == 1
        if np.shape(grad) != np.shape(hess) or not (wide or flat):
            raise PackingRefused(
                f"expected grad and hess of shape (n, {self.n_classes}), "
                f"received {np.shape(grad)} and {np.shape(hess)}"
            )
        stored = []
        for name, values, low, high in (
            ("gradients", grad, -self.largest_grad, self.largest_grad),
            ("hessians", hess, 0, self.largest_hess),
        ):
            scaled = np.rint(np.ldexp(np.asarray(values, np.float64), self.fraction_bits))
            # NaN fails both comparisons; bounds below 2^62 keep the cast exact.
            if not ((scaled >= low) & (scaled <= high)).all():
                raise PackingRefused(f"{name} are not finite or not within the agreed bound")
            stored.append(scaled.astype(np.int64).reshape(-1, self.n_classes))
        return stored[0], stored[1]

    def pack(self, grad: NDArray[np.int64], hess: NDArray[np.int64]) -> list[int]:
        """Return one plaintext a row from stored values of shape (n, n_classes)."""
        if grad.shape != hess.shape or grad.ndim != 2 or grad.shape[1] != self.n_classes:
            raise PackingRefused(
                f"expected stored values of shape (n, {self.n_classes}), "
                f"received {grad.shape} and {hess.shape}"
            )
        if len(grad) and (
            int(grad.min()) < -self.largest_grad
            or int(grad.max()) > self.largest_grad
            or int(hess.min()) < 0
            or int(hess.max()) > self.largest_hess
        ):
            raise PackingRefused("stored values are not within the agreed bound")
        width, low = self.pair_bits, self.hess_bits
        plaintexts = [0] * len(grad)
        for k in range(self.n_classes):
            pairs = zip(plaintexts, grad[:, k].tolist(), hess[:, k].tolist(), strict=True)
            plaintexts = [(p << width) + (g << low) + h for p, g, h in pairs]
        return plaintexts

    def unpack(
        self, plaintexts: Sequence[int], counts: Sequence[int], key_bits: int = 0
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return the sums in packed answers.

        Parameters
        ----------
        plaintexts
            Signed plaintexts of an answer, in order.
        counts
            Bins in each of them.
        key_bits
            Of the key, where the room above the bins is filled up.

        Returns
        -------
        grad, hess
            Each of shape (sum of counts, n_classes), units of 2^-s: int64 where sums fit 63 bits,
            else objects of Python's int. Both are exact, and subtract exactly.

        Raises
        ------
        PlaintextOutOfRange
            A plaintext holds more than its bins, or a sum is above what the rows can give.
        """
        if len(plaintexts) != len(counts):
            raise PackingRefused(f"expected {len(counts)} plaintexts, received {len(plaintexts)}")
        width, half = self.pair_bits, 1 << (self.pair_bits - 1)
        h_bits = self.hess_bits
        mask, h_mask = (1 << width) - 1, (1 << h_bits) - 1
        grads: list[int] = []
        hesses: list[int] = []
        for plaintext, count in zip(plaintexts, counts, strict=True):
            rest = int(plaintext)
            at = len(grads)
            for _ in range(count * self.n_classes):
                low = rest & mask
                rest >>= width
                if low >= half:  # negative: it borrowed one from the pair above
                    low -= mask + 1
                    rest += 1
                grads.append(low >> h_bits)
                hesses.append(low & h_mask)
            if rest >> self.spare_bits(count, key_bits):
                raise PlaintextOutOfRange(
                    f"an answer holds more than {count} bins of {self.bin_bits} bits"
                )
            grads[at:] = grads[at:][::-1]
            hesses[at:] = hesses[at:][::-1]
        dtype = np.int64 if max(self.grad_bits, self.hess_bits) <= _INT64_BITS else object
        grad = np.array(grads, dtype).reshape(-1, self.n_classes)
        hess = np.array(hesses, dtype).reshape(-1, self.n_classes)
        if len(grad) and (
            np.abs(grad).max() > self.n_rows * self.largest_grad
            or hess.max() > self.n_rows * self.largest_hess
        ):
            raise PlaintextOutOfRange("a decrypted sum is above what its rows can give")
        return grad, hess


def classes_per_ciphertext(layout: PairLayout, key_bits: int) -> list[int]:
    """Return how many classes go into each ciphertext of a row where one cannot hold all.

    κ = ⌊usable / S⌋ pairs a ciphertext, ⌈Q / κ⌉ ciphertexts a row.
    """
    room = usable_bits(key_bits) // layout.pair_bits
    if room < 1:
        raise PackingRefused(f"a pair of {layout.pair_bits} bits does not fit a {key_bits}-bit key")
    full, rest = divmod(layout.n_classes, room)
    return [room] * full + ([rest] if rest else [])
