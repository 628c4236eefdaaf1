"""Histograms of encrypted gradients: rows to bins, bins to answers, answers to sums.

A passive party loads a tree's row ciphertexts once (:class:`CiphertextHistograms`), sums the rows
of a node into the bins of its features, and answers with packed, re-randomised ciphertexts
(:func:`pack_answer`). The key holder reads an answer with :func:`read_answer`. It derives a node's
larger child from parent and smaller child in plaintext, so that nobody sums or sends the larger
one.

Three savings, all exact, chosen by counting multiplications:

* **Joint bins.** Rows are summed into the cells of several features at once, and the cells into
  each feature's bins: m + 2·B² multiplications for a pair of features instead of 2·m.
* **The fullest cell** of a feature (or of joint features) is skipped and derived as the node's
  total over the other cells. So a sparse feature costs what its other values cost.
* **Balance.** Long segments are cut, so that lanes and cores finish together.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.arithmetic.modular import Modulus, Residues
from hedgerow.crypto.ciphers.obfuscators import Obfuscators
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.paillier import KeyHolder, PublicOperations
from hedgerow.crypto.ciphers.roles import Bins, Ciphertexts
from hedgerow.crypto.ciphers.sparse_bins import SparseBins, usual_is_sent
from hedgerow.crypto.errors import HistogramRefused

# Cell numbers stay 16 bits wide, where numpy sorts by radix.
_MOST_CELLS = 1 << 16
# Row numbers handled in one pass, so that index arrays stay below some 64 MB.
_ROWS_A_PASS = 1 << 24
# Multiplications that one more derived cell costs: its share of a simultaneous inversion.
_DERIVATION_COST = 64


@dataclass(frozen=True, slots=True, eq=False)
class BinSums:
    """Encrypted sums of one node, feature by feature, bin by bin."""

    residues: Residues
    """Opaque residues, one a bin; never sent as they are, see :func:`pack_answer`."""
    n_bins: tuple[int, ...]
    """Bins of each feature."""

    def __len__(self) -> int:
        return len(self.residues)


class CiphertextHistograms:
    """A passive party's view of one tree: encrypted rows and its own bins.

    Parameters
    ----------
    public
        The active party's public key.
    rows
        One ciphertext a row. Where a row's classes fill several ciphertexts, one object of this
        class serves each.
    bins
        Of shape (n_rows, n_features), uint8 or uint16: bin of every row and feature; or sparse.
    n_bins
        Bins of each feature; every entry of ``bins`` is below it.

    Raises
    ------
    HistogramRefused
        Shapes, types or bins do not fit.
    CiphertextRejected
        As :meth:`~hedgerow.crypto.ciphers.paillier.PublicOperations.load`.
    """

    def __init__(
        self,
        public: PublicOperations,
        rows: Ciphertexts,
        bins: Bins,
        n_bins: Sequence[int],
    ) -> None:
        if len(rows) != len(bins):
            raise HistogramRefused(f"expected {len(bins)} row ciphertexts, received {len(rows)}")
        check_bins(bins, n_bins)
        self.n_bins = tuple(int(b) for b in n_bins)
        self._modulus = public.modulus
        self._public = public
        self._rows = public.load(rows)
        self._sparse = bins if isinstance(bins, SparseBins) else None
        if isinstance(bins, SparseBins):
            return
        self._bins = np.asfortranarray(bins)
        self._shares = [
            int(np.bincount(column).max()) / len(column) if len(column) else 0.0
            for column in self._bins.T
        ]

    def sums(
        self,
        rows: NDArray[np.integer] | None = None,
        *,
        joint: bool = True,
        missing: Sequence[bool] | None = None,
    ) -> BinSums:
        """Return the encrypted bins of one node.

        Parameters
        ----------
        rows
            Strictly ascending row numbers of the node; all rows when left out.
        joint
            Allow joint bins; the result is the same without them.
        missing
            Features whose last bin need not be summed, where that would cost more.

        Raises
        ------
        HistogramRefused
            Row numbers are not ascending, or not of this tree.
        """
        n = len(self._rows)
        chosen = np.arange(n, dtype=np.uint32) if rows is None else check_rows(rows, n)
        if self._sparse is not None:
            return self._sparse_sums(self._sparse, chosen, missing)
        each_alone = [(feature,) for feature in range(len(self.n_bins))]
        groups = plan_groups(self.n_bins, self._shares, len(chosen)) if joint else each_alone
        residues: dict[int, Residues] = {}
        total: Residues | None = None
        for batch in _batches(groups, max(1, _ROWS_A_PASS // max(1, len(chosen)))):
            cells, total = self._cells(batch, chosen, total)
            residues.update(_marginals(self._modulus, batch, self.n_bins, cells))
        if not residues:
            return BinSums(self._rows[:0], ())
        ordered = [residues[feature] for feature in range(len(self.n_bins))]
        return BinSums(np.concatenate(ordered), self.n_bins)

    def _sparse_sums(
        self, bins: SparseBins, rows: NDArray[np.uint32], missing: Sequence[bool] | None
    ) -> BinSums:
        """Return the listed rows' sums, and with them the usual bins: the total over all others."""
        index, counts = bins.of_node(rows)
        sums = _segments(self._modulus, self._rows, index, counts)
        wanted = usual_is_sent(bins, missing)
        if wanted.any():
            whole = np.array([len(rows)])
            total = self._modulus.product(_segments(self._modulus, self._rows, rows, whole))
            cells = np.flatnonzero(np.repeat(wanted, bins.n_bins)).astype(np.uint32)
            self._derive(sums, total, cells, bins.n_bins[wanted], bins.usual_cells[wanted])
        return BinSums(sums, self.n_bins)

    def _cells(
        self,
        groups: Sequence[tuple[int, ...]],
        rows: NDArray[np.uint32],
        total: Residues | None,
    ) -> tuple[list[Residues], Residues]:
        """Return the encrypted cells of every group, and the node's total."""
        orders, counts = [], []
        for group in groups:
            code = self._bins[rows, group[0]]
            for feature in group[1:]:
                wide = code.astype(np.uint32) * self.n_bins[feature] + self._bins[rows, feature]
                code = wide.astype(np.uint16)
            orders.append(rows[np.argsort(code, kind="stable")])
            counts.append(np.bincount(code, minlength=math.prod(self.n_bins[f] for f in group)))
        fullest = [int(count.argmax()) for count in counts]
        worth = [
            int(count[f]) > len(count) + _DERIVATION_COST
            for count, f in zip(counts, fullest, strict=True)
        ]
        if total is None:  # the total comes from a group that is summed in full
            first = min(range(len(groups)), key=lambda i: int(counts[i][fullest[i]]))
            worth[first] = False
        index, lengths = [], []
        for order, count, skip, derived in zip(orders, counts, fullest, worth, strict=True):
            if derived:
                low = int(count[:skip].sum())
                order = np.concatenate([order[:low], order[low + int(count[skip]) :]])
                count = count.copy()
                count[skip] = 0
            index.append(order)
            lengths.append(count)
        sums = _segments(self._modulus, self._rows, np.concatenate(index), np.concatenate(lengths))
        edges = np.concatenate([[0], np.cumsum([len(count) for count in counts])])
        if total is None:
            total = self._modulus.product(sums[edges[first] : edges[first + 1]])
        if any(worth):
            skipped = np.flatnonzero(worth)
            cells = np.concatenate([np.arange(edges[g], edges[g + 1]) for g in skipped])
            places = edges[skipped] + np.array(fullest)[skipped]
            self._derive(sums, total, cells.astype(np.uint32), np.diff(edges)[skipped], places)
        return [sums[a:b] for a, b in itertools.pairwise(edges)], total

    def _derive(
        self,
        sums: Residues,
        total: Residues,
        cells: NDArray[np.uint32],
        lengths: NDArray[np.int64],
        places: NDArray[np.int64],
    ) -> None:
        """Fill in the skipped cell of each segment: the total over the product of its others."""
        others = _segments(self._modulus, sums, cells, lengths)
        sums[places] = self._modulus.multiply(self._public.negate(others), total)


def check_bins(bins: Bins, n_bins: Sequence[int]) -> None:
    """Refuse bins of another shape or type, or that are not below their feature's number."""
    if isinstance(bins, SparseBins):
        bins.check(n_bins)
        return
    if bins.ndim != 2 or bins.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
        raise HistogramRefused(
            f"expected bins of shape (n_rows, n_features), uint8 or uint16, "
            f"received {bins.shape}, {bins.dtype}"
        )
    if len(n_bins) != bins.shape[1] or min(n_bins, default=1) < 1:
        raise HistogramRefused(
            f"expected a positive number of bins for each of {bins.shape[1]} features"
        )
    if len(bins) and (bins.max(axis=0, initial=0) >= np.asarray(n_bins)).any():
        raise HistogramRefused("a row's bin is not below its feature's number of bins")


def check_rows(rows: NDArray[np.integer], n: int) -> NDArray[np.uint32]:
    """Return a node's row numbers; refuse any that are not ascending, or not below ``n``."""
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise HistogramRefused("expected a vector of row numbers")
    if len(rows) and (rows[0] < 0 or rows[-1] >= n or (np.diff(rows.astype(np.int64)) < 1).any()):
        raise HistogramRefused(f"expected strictly ascending row numbers below {n}")
    return rows.astype(np.uint32)


def plan_groups(
    n_bins: Sequence[int], shares: Sequence[float], n_rows: int
) -> list[tuple[int, ...]]:
    """Return which features share joint cells at a node.

    Features alike in density and with few bins go together; a group grows while that lowers the
    multiplications a feature.

    Parameters
    ----------
    shares
        Share of all rows in each feature's fullest bin.
    """
    waiting = sorted(range(len(n_bins)), key=lambda f: (shares[f] > 0.5, n_bins[f]))
    groups = []
    while waiting:
        best, best_cost = 1, math.inf
        for size in range(1, len(waiting) + 1):
            dims = [n_bins[f] for f in waiting[:size]]
            n_cells = math.prod(dims)
            if size > 1 and n_cells > _MOST_CELLS:
                break
            rest = n_rows * (1 - math.prod(shares[f] for f in waiting[:size]))
            adds = min(n_rows, rest + n_cells + _DERIVATION_COST)
            cost = (adds + _marginal_cost(dims)) / size
            if cost < best_cost:
                best, best_cost = size, cost
        groups.append(tuple(waiting[:best]))
        waiting = waiting[best:]
    return groups


def _batches(groups: Sequence[tuple[int, ...]], size: int) -> Iterator[Sequence[tuple[int, ...]]]:
    for at in range(0, len(groups), size):
        yield groups[at : at + size]


def _marginal_cost(dims: Sequence[int]) -> int:
    if len(dims) == 1:
        return 0
    half = len(dims) // 2
    return 2 * math.prod(dims) + _marginal_cost(dims[:half]) + _marginal_cost(dims[half:])


def _marginals(
    modulus: Modulus,
    groups: Sequence[tuple[int, ...]],
    n_bins: Sequence[int],
    cells: Sequence[Residues],
) -> dict[int, Residues]:
    """Return each feature's bins from joint cells, halving groups until features are alone."""
    done: dict[int, Residues] = {}
    parts: list[tuple[tuple[int, ...], Residues]] = list(zip(groups, cells, strict=True))
    while parts:
        for group, residues in parts:
            if len(group) == 1:
                done[group[0]] = residues
        parts = [part for part in parts if len(part[0]) > 1]
        if not parts:
            break
        halves: list[tuple[int, ...]] = []
        index, lengths = [], []
        base = 0
        for group, residues in parts:
            half = len(group) // 2
            left, right = group[:half], group[half:]
            n_left, n_right = (math.prod(n_bins[f] for f in side) for side in (left, right))
            grid = np.arange(base, base + n_left * n_right).reshape(n_left, n_right)
            index += [grid.ravel(), grid.T.ravel()]
            lengths += [np.full(n_left, n_right), np.full(n_right, n_left)]
            halves += [left, right]
            base += len(residues)
        sums = _segments(
            modulus,
            np.concatenate([residues for _, residues in parts]),
            np.concatenate(index).astype(np.uint32),
            np.concatenate(lengths),
        )
        edges = np.cumsum([0, *(math.prod(n_bins[f] for f in side) for side in halves)])
        parts = [(side, sums[a:b]) for side, a, b in zip(halves, edges, edges[1:], strict=False)]
    return done


def _segments(
    modulus: Modulus, a: Residues, index: NDArray[np.uint32], lengths: NDArray[np.int64]
) -> Residues:
    """Return the products of consecutive segments, long ones in pieces of their own."""
    n_factors = int(lengths.sum())
    most = max(32, n_factors // (64 * modulus.workers))
    start = np.concatenate([[0], np.cumsum(lengths)])
    if int(lengths.max(initial=0)) <= most:
        return modulus.segment_products(a, index, start)
    pieces = np.maximum(1, -(-lengths // most))
    first = np.concatenate([[0], np.cumsum(pieces)])
    # Piece k of a segment of n factors in c pieces starts at ⌊n·k/c⌋ of it.
    owner = np.repeat(np.arange(len(lengths)), pieces)
    k = np.arange(len(owner)) - first[owner]
    inner = start[owner] + lengths[owner] * k // pieces[owner]
    partial = modulus.segment_products(a, index, np.concatenate([inner, start[-1:]]))
    return modulus.segment_products(partial, np.arange(len(owner), dtype=np.uint32), first)


def running_sums(
    n_bins: Sequence[int], missing: Sequence[bool] | None
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]], tuple[int, ...]]:
    """Return what :func:`cumulate` adds up: the bin that each sum ends with, chains, and widths.

    Returns
    -------
    source
        For each sum, the number of the bin that it has and the sum before it has not.
    chains
        Numbers of sums, each of which contains the one before it.
    n_out
        Sums of each feature.
    """
    edges = np.concatenate([[0], np.cumsum(n_bins)]).astype(np.int64)
    flags = [False] * len(n_bins) if missing is None else list(missing)
    if len(flags) != len(n_bins):
        raise HistogramRefused(f"expected {len(n_bins)} flags of missing values")
    source: list[NDArray[np.int64]] = []
    chains: list[NDArray[np.int64]] = []
    n_out: list[int] = []
    start = 0
    for first, n, has_missing in zip(edges, n_bins, flags, strict=False):
        n_present = n - 1 if has_missing else n
        forwards = np.arange(first, first + n_present)
        backwards = forwards[1:] if has_missing else forwards[:0]
        source += [forwards, backwards]
        chains.append(np.arange(start, start + n_present))
        chains.append(start + n_present + np.arange(len(backwards))[::-1])
        n_out.append(n_present + len(backwards))
        start += n_out[-1]
    index = np.concatenate(source) if source else np.empty(0, np.int64)
    return index, chains, tuple(n_out)


def cumulate(
    public: PublicOperations, sums: Sequence[BinSums], missing: Sequence[bool] | None = None
) -> BinSums:
    """Return running sums over each feature's bins, node by node: bin b holds bins 0 to b.

    Parameters
    ----------
    sums
        Of one or more nodes, with the same features.
    missing
        Features whose last bin holds missing values. Such a feature of B other bins gives 2·B - 1
        sums: over bins 0 to b for b from 0 to B - 1, then over bins b to B - 1 for b from 1 to
        B - 1; its last bin is in none of them.
    """
    source, chains, n_out = running_sums(sums[0].n_bins, missing)
    residues = np.concatenate([node.residues[source] for node in sums])
    nodes = len(source) * np.arange(len(sums))[:, None]
    steps = np.full((max((len(chain) for chain in chains), default=0), len(chains)), -1)
    for k, chain in enumerate(chains):
        steps[: len(chain), k] = chain
    for before, at in itertools.pairwise(steps):
        goes_on = at >= 0
        grown = (nodes + at[goes_on]).ravel()
        residues[grown] = public.add(residues[grown], residues[(nodes + before[goes_on]).ravel()])
    return BinSums(residues, n_out * len(sums))


def n_answer_ciphertexts(n_bins: int, layout: PairLayout, key_bits: int) -> int:
    """Return how many ciphertexts an answer of ``n_bins`` bins has."""
    return -(-n_bins // layout.slots(key_bits))


def _counts(n_bins: int, slots: int) -> list[int]:
    full, rest = divmod(n_bins, slots)
    return [slots] * full + ([rest] if rest else [])


def pack_answer(
    public: PublicOperations,
    sums: Sequence[BinSums],
    layout: PairLayout,
    obfuscators: Obfuscators,
    order: NDArray[np.integer] | None = None,
    n_added: int = 1,
) -> Ciphertexts:
    """Return bins as they leave a passive party: packed, then re-randomised.

    What a ciphertext has room for above its bins is random, so that a key holder who encrypted more
    than the agreed width reads little more than that of every bin.

    Parameters
    ----------
    public
        The active party's public key.
    sums
        Bins of one or more nodes, sent in this order.
    layout
        How the active party packed its rows.
    obfuscators
        :class:`~crypto.ciphers.obfuscators.UniformObfuscators` of this party: the key holder must
        not learn from an answer which rows it sums.
    order
        Numbers of the bins to send, in the order to send them (candidates, shuffled); all when
        left out.
    n_added
        Answers that are added up before the key holder reads their sum: the random bits of each
        leave room for those of the others.
    """
    residues = np.concatenate([public.modulus.ones(0), *(s.residues for s in sums)])
    if order is not None:
        if len(order) and (order.min() < 0 or order.max() >= len(residues)):
            raise HistogramRefused(f"expected bin numbers below {len(residues)}")
        residues = residues[order]
    slots = layout.slots(public.public_key.bits)
    packages = n_answer_ciphertexts(len(residues), layout, public.public_key.bits)
    if packages == 0:
        return public.rerandomise(residues, obfuscators)
    # The last package's missing bins go in front, as zeros, where they change nothing.
    at = (packages - 1) * slots
    missing = packages * slots - len(residues)
    padded = np.concatenate([residues[:at], public.modulus.ones(missing), residues[at:]])
    packed = public.modulus.horner(padded, slots, layout.bin_bits)
    carry = (n_added - 1).bit_length()
    noise = [
        secrets.randbits(max(0, layout.spare_bits(count, public.public_key.bits) - carry))
        << count * layout.bin_bits
        for count in _counts(len(residues), slots)
    ]
    packed = public.modulus.multiply(packed, public.encode(noise))
    return public.rerandomise(packed, obfuscators)


def read_answer(
    holder: KeyHolder, answer: Ciphertexts, n_bins: int, layout: PairLayout
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Return the sums of an answer of ``n_bins`` bins.

    Returns
    -------
    grad, hess
        Each of shape (n_bins, n_classes), exact integers in units of 2^-s, see
        :meth:`~hedgerow.crypto.ciphers.packing.PairLayout.unpack`.

    Raises
    ------
    HistogramRefused
        The answer has another number of ciphertexts.
    CiphertextRejected, PlaintextOutOfRange
        As :meth:`~hedgerow.crypto.ciphers.paillier.KeyHolder.decrypt`.
    """
    key_bits = holder.private_key.public_key.bits
    expected = n_answer_ciphertexts(n_bins, layout, key_bits)
    if len(answer) != expected:
        raise HistogramRefused(
            f"expected {expected} ciphertexts for {n_bins} bins, received {len(answer)}"
        )
    counts = _counts(n_bins, layout.slots(key_bits))
    return layout.unpack(holder.decrypt(answer), counts, key_bits)
