"""FATE's form of packed gradients, which shifts g to be positive: an oracle for ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hedgerow.crypto.errors import PackingRefused, PlaintextOutOfRange


@dataclass(frozen=True, slots=True)
class OffsetLayout:
    """FATE's form: round((g + g_off)·P)·2^{b_h} + round(h·P), read back with row counts.

    Parameters
    ----------
    precision
        P, the same for encoding and decoding.
    grad_offset
        g_off ≥ |min g|, added to every g.
    grad_bits, hess_bits
        b_g and b_h.
    """

    precision: int
    grad_offset: float
    grad_bits: int
    hess_bits: int

    @classmethod
    def fit(
        cls, *, n_rows: int, min_grad: float, max_grad: float, max_hess: float, precision: int
    ) -> OffsetLayout:
        """Return the layout whose widths hold sums of ``n_rows`` rows."""
        offset = abs(min_grad)
        return cls(
            precision,
            offset,
            (math.floor((offset + max_grad) * n_rows * precision) + 1).bit_length(),
            (math.floor(max_hess * n_rows * precision) + 1).bit_length(),
        )

    @property
    def pair_bits(self) -> int:
        """Width of a pair."""
        return self.grad_bits + self.hess_bits

    def pack(self, grad: Sequence[float], hess: Sequence[float]) -> list[int]:
        """Return one plaintext a row.

        Raises
        ------
        PackingRefused
            A shifted g or an h is negative or does not fit.
        """
        plaintexts = []
        for g, h in zip(grad, hess, strict=True):
            high = round((float(g) + self.grad_offset) * self.precision)
            low = round(float(h) * self.precision)
            if not (0 <= high < 1 << self.grad_bits and 0 <= low < 1 << self.hess_bits):
                raise PackingRefused("gradients or hessians are not within the agreed bound")
            plaintexts.append((high << self.hess_bits) + low)
        return plaintexts

    def compress(self, plaintexts: Sequence[int]) -> int:
        """Return acc ← acc·2^{b_g + b_h} + next over plaintexts, as cipher compressing does."""
        packed = 0
        for plaintext in plaintexts:
            packed = (packed << self.pair_bits) + plaintext
        return packed

    def unpack(self, packed: int, row_counts: Sequence[int]) -> list[tuple[float, float]]:
        """Return (sum of g, sum of h) of every slot, given how many rows each one summed."""
        sums = []
        for count in reversed(row_counts):
            slot = packed & ((1 << self.pair_bits) - 1)
            packed >>= self.pair_bits
            g = (slot >> self.hess_bits) / self.precision - self.grad_offset * count
            sums.append((g, (slot & ((1 << self.hess_bits) - 1)) / self.precision))
        if packed:
            raise PlaintextOutOfRange(f"an answer holds more than {len(row_counts)} slots")
        return sums[::-1]
