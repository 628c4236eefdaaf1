"""A silo's rows: binned, with margins, and as the trees of a round divide them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.engine.histogram import Layout, build_histograms, node_sums
from hedgerow.boosting.engine.partition import RowPartition
from hedgerow.boosting.engine.quantising import Quantiser
from hedgerow.boosting.engine.sampling import Sample
from hedgerow.boosting.engine.table import Table
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.ports import SiloStart
from hedgerow.boosting.storage import Storage
from hedgerow.boosting.strategies.histogram.mirror import TreeMirror, apply_level
from hedgerow.boosting.strategies.histogram.plan import HistogramPlan, Opening
from hedgerow.boosting.strategies.histogram.round_trees import Integers, RoundShape
from hedgerow.boosting.strategies.histogram.steps import LevelDecision, RowsScored
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.boosting.sums.view import state_digest
from hedgerow.boosting.trees.agreed import fingerprints
from hedgerow.boosting.trees.ensemble import Ensemble, Tree
from hedgerow.boosting.trees.local import matrix
from hedgerow.crypto.allocator import release_freed_memory
from hedgerow.crypto.fields import Fields

Floats = NDArray[np.float32]

_BLOCK_ROWS = 1 << 16


class SiloRows:
    """Training and validation rows of a silo, with their margins.

    Attributes
    ----------
    train : Dataset
    number : int
        The silo's place in the roster: its random streams.
    model : bytes
        Digest of what was agreed on before the first round and of the trees so far.
    missing : ndarray of shape (n_features,), bool
        Features of which some training row has no value.
    """

    def __init__(self, plan: HistogramPlan, start: SiloStart) -> None:
        self._plan = plan
        self._n_threads = start.n_threads
        self._storage = start.storage
        data = start.dataset
        plan.objective.check_labels(data.labels, start.schema.n_classes)
        self.number = start.silos.index(start.silo)
        rng = generator(plan.job.seed, self.number, 0, Purpose.VALIDATION)
        held = np.zeros(data.n_samples, dtype=bool)
        held[rng.permutation(data.n_samples)[: int(plan.parameters.validation * len(held))]] = True
        self.train = data.take(np.flatnonzero(~held)) if held.any() else data
        self._valid = data.take(np.flatnonzero(held))

    def begin(self, opening: Opening) -> None:
        """Bin the rows and start their margins."""
        self._cuts = opening.cuts
        release_freed_memory()  # of the columns that were sorted
        self.model = state_digest(self._plan.schema, opening.terms)
        self.known: list[bytes] = []
        margin = self._plan.objective.margin_of(opening.base_score)
        self.table, self._valid_table = (
            Table.of(data, opening.cuts, margin, self._n_threads, self._room(data))
            for data in (self.train, self._valid)
        )
        self._start_margin = margin
        self.missing = self.table.binned.missing

    def _room(self, data: Dataset) -> Storage:
        n_total = self.train.n_samples + self._valid.n_samples
        return self._storage.share(data.n_samples, n_total)

    def restore(self, ensemble: Ensemble) -> None:
        """Take the margins of an ensemble."""
        start = 0
        for end in ensemble.round_ends:
            first, last = (ensemble.steps[n - 1] if n else 0 for n in (start, end))
            self._follow(ensemble.trees[first:last])
            start = end
        for data, table in ((self.train, self.table), (self._valid, self._valid_table)):
            for rows in _blocks(data.n_samples):
                block = Dataset(data.schema, table.binned.values(self._cuts, rows))
                margins = ensemble.margins(
                    matrix(block, self._n_threads), n_threads=self._n_threads
                )
                table.margins[rows] = margins.reshape(table.margins[rows].shape)

    def gradients(self) -> tuple[Floats, Floats]:
        """Return g and h of the training rows, shape (n_samples, n_outputs)."""
        table = self.table
        return self._plan.objective.gradients(table.margins, table.y, table.weight)

    def add(self, trees: Sequence[tuple[TreeMirror, RowPartition | None]], values: Floats) -> None:
        """Add a round's trees to the margins.

        Parameters
        ----------
        trees : sequence of tuple
            Each with the rows that it was grown on, where it was grown on some of this silo.
        values : ndarray of shape (n_values,), float32
            As in :class:`ClosedTrees`.
        """
        width = self._plan.width // 2
        ends = np.cumsum([len(mirror.leaves) * width for mirror, _ in trees])
        if values.shape[0] != ends[-1] or not np.isfinite(values).all():
            raise OfferRejected(f"leaf values: expected {ends[-1]} finite numbers")
        parts = np.split(values, ends[:-1])
        followed: list[Tree] = []
        for t, ((mirror, partition), part) in enumerate(zip(trees, parts, strict=True)):
            grown = mirror.grown(part.reshape(-1, width))
            followed.extend(grown.trees(self._cuts, self._plan.groups(t)))
            self.table.add_tree(grown, partition, self._plan.groups(t))
            if self._valid.n_samples:
                self._valid_table.add_tree(grown, None, self._plan.groups(t))

        self._follow(followed)

    def _follow(self, trees: Sequence[Tree]) -> None:
        """Add a round's trees to the digest of the model: structure and leaf values."""
        self.model = state_digest(self.model, *(tree.structure for tree in trees))
        self.known += fingerprints(trees)

    def metric_sums(self, scored: RowsScored) -> NDArray[np.float64]:
        """Return the additive form of the metrics of training or validation rows."""
        valid = scored is RowsScored.VALID
        data, table = (self._valid, self._valid_table) if valid else (self.train, self.table)
        margins = table.margins[:, 0] if table.margins.shape[1] == 1 else table.margins
        parts = [
            metrics.sums(
                self._plan.metric_names,
                data.labels[rows],
                margins[rows],
                objective=self._plan.job.objective,
                weight=None if data.weight is None else data.weight[rows],
                center=self._start_margin,
            )
            for rows in _blocks(max(1, data.n_samples))
        ]
        return np.asarray(np.sum(parts, axis=0))


def _blocks(n_samples: int) -> Iterator[slice]:
    """Yield rows that are worked on at a time, so that what that takes does not grow with them."""
    for first in range(0, n_samples, _BLOCK_ROWS):
        yield slice(first, first + _BLOCK_ROWS)


class _TreeRows:
    """The rows of one tree: which node each has reached, and their integers."""

    __slots__ = ("exact", "mirror", "partition", "searched")

    def __init__(
        self,
        partition: RowPartition,
        mirror: TreeMirror,
        searched: Integers,
        exact: Integers | None,
    ) -> None:
        self.partition = partition
        self.mirror = mirror
        self.searched = searched
        self.exact = exact


class PackedLevel(NamedTuple):
    """Words of a level's vector, their fields, and whether a width may turn out too narrow."""

    words: NDArray[np.uint64]
    fields: Fields
    guessed: bool


class DividedRows:
    """A silo's sampled rows in the trees of a round: sums go out, splits come in.

    Parameters
    ----------
    shape : RoundShape
    sample : Sample
    quantiser : Quantiser
    """

    def __init__(
        self,
        plan: HistogramPlan,
        rows: SiloRows,
        shape: RoundShape,
        gradients: tuple[Floats, Floats],
        sample: Sample,
        quantiser: Quantiser,
        round_: int,
    ) -> None:
        g, h = gradients
        exact = quantiser.lossless(g, h, sample)
        searched = exact
        if plan.parameters.coarse_bits:
            rng = generator(plan.job.seed, rows.number, round_, Purpose.ROUNDING)
            searched = quantiser.coarse(g, h, sample, rng)
        self._table = rows.table
        self._layouts: Sequence[Layout] = shape.layouts
        self._shape = shape
        self._scale, _ = plan.scales(quantiser)
        self._missing = rows.missing
        self.trees = [
            _TreeRows(
                RowPartition(sample.rows),
                shape.mirror(),
                np.ascontiguousarray(searched[:, plan.part(t)]),
                np.ascontiguousarray(exact[:, plan.part(t)]) if searched is not exact else None,
            )
            for t in range(plan.n_trees)
        ]

    def level(self, level: int) -> Integers:
        """Return this silo's part of a level's vector: the requested nodes' histograms.

        The first level has the totals of each tree before its root's histogram.
        """
        parts = []
        for tree, layout in zip(self.trees, self._layouts, strict=True):
            if level == 0:
                parts.append(node_sums(tree.partition, [0], tree.searched).reshape(-1))
            parts.append(
                build_histograms(
                    self._table.binned,
                    tree.partition,
                    tree.mirror.request,
                    tree.searched,
                    layout,
                    self._table.n_threads,
                ).reshape(-1)
            )
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def packed(self, own: Integers, level: int, n_silos: int, *, wide: bool) -> PackedLevel:
        """Return a level's vector as it travels in a sum over at most ``n_silos`` silos."""
        mirrors = [tree.mirror for tree in self.trees]
        rings = self._shape.rings(mirrors, self._scale, first=level == 0, wide=wide)
        return PackedLevel(rings.pack(own, self._missing, n_silos), rings.fields, rings.guessed)

    def leaves(self) -> Integers:
        """Return this silo's part of the lossless leaf sums."""
        return np.concatenate(
            [
                node_sums(tree.partition, tree.mirror.leaves, tree.exact).reshape(-1)
                for tree in self.trees
                if tree.exact is not None
            ]
        )

    def divide(self, decision: LevelDecision) -> None:
        """Move the rows by a level's splits; raises OfferRejected for splits that do not fit."""
        splits = apply_level([tree.mirror for tree in self.trees], decision.trees)
        for tree, own in zip(self.trees, splits, strict=True):
            tree.partition.split_by_bins(self._table.binned, own)

    @property
    def state(self) -> tuple[object, ...]:
        """What the next sums of the trees follow from."""
        return tuple(tree.mirror.state for tree in self.trees)

    @property
    def done(self) -> bool:
        """Whether no further histogram is requested."""
        return not any(tree.mirror.request for tree in self.trees)
