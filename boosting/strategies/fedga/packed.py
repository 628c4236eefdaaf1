"""Structures as bits: how they travel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hedgerow.boosting.payloads import Bytes1
from hedgerow.boosting.trees.genetics import Genes, depth_of

MAX_GENES = 1 << 23
"""Most genes of a payload, which bounds the memory of :meth:`PackedStructures.unpack`."""

_MAX_BITS = 15


@dataclass(frozen=True, slots=True, eq=False)
class PackedStructures:
    """One or more structures of one depth, gene after gene, structure after structure."""

    gene_bits: int
    """Int, 1 to 15. Bits of a gene: enough for the largest. A gene is a feature's index plus one, 0
    for a leaf, lowest bit first."""
    n_structures: int
    n_genes: int
    """Genes of a structure, ``2**depth - 1``."""
    bits: Bytes1
    """Eight bits a byte, the first in the lowest place; the last byte is filled up with zeros."""

    def __post_init__(self) -> None:
        depth_of(self.n_genes)
        if not 1 <= self.gene_bits <= _MAX_BITS:
            raise ValueError(f"expected 1 to {_MAX_BITS} bits a gene, received {self.gene_bits}")
        if not 1 <= self.n_structures <= MAX_GENES // self.n_genes:
            raise ValueError(
                f"expected 1 to {MAX_GENES // self.n_genes} structures of {self.n_genes} genes, "
                f"received {self.n_structures}"
            )
        expected = -(-self.n_structures * self.n_genes * self.gene_bits // 8)
        if len(self.bits) != expected:
            raise ValueError(f"expected {expected} bytes of genes, received {len(self.bits)}")

    @classmethod
    def of(cls, structures: Genes) -> PackedStructures | None:
        """Return structures of shape (n_structures, n_genes), packed; None for none."""
        if not structures.shape[0]:
            return None
        shifted = structures.astype(np.int32) + 1
        gene_bits = max(1, int(shifted.max()).bit_length())
        bits = (shifted.reshape(-1, 1) >> np.arange(gene_bits)) & 1
        packed = np.packbits(bits.astype(np.uint8), bitorder="little")
        return cls(gene_bits, structures.shape[0], structures.shape[1], packed)

    def unpack(self) -> Genes:
        """Return the structures, shape (n_structures, n_genes)."""
        n_bits = self.n_structures * self.n_genes * self.gene_bits
        bits = np.unpackbits(self.bits, count=n_bits, bitorder="little")
        places = 1 << np.arange(self.gene_bits, dtype=np.int32)
        shifted = bits.reshape(-1, self.gene_bits).astype(np.int32) @ places
        return (shifted - 1).astype(np.int16).reshape(self.n_structures, self.n_genes)
