"""Divisions of a passive party's categories into sets, without showing the active party which.

The owner puts the categories of a column into a secret order, one for the whole job, and sends
running sums along it, as it does along the bins of a number. Which candidates are of one column,
and their order, it says; which categories they are, it does not. The differences are the sums of
single categories (of several, where few rows were merged). The active party sorts them by the
weight that each would get, takes the best division of this order into two (Fisher, 1958), and
answers with the candidates up to which categories go right.

Categories of few rows are merged with neighbours of that order. In another order they would have
others, and two sets that one party sees could have only such a category in common. So groups are
formed once, over all rows of training, nothing ever divides one, and nodes merge groups of the same
order further.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.binning import BinnedFeatures
from hedgerow.boosting.engine.sparse import SparseFeatures
from hedgerow.boosting.engine.splitting import Scale, TreeParameters, node_weights
from hedgerow.boosting.errors import OfferRejected, SumCorrupt
from hedgerow.boosting.strategies.secureboost.steps import CategorySet

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chain:
    """The candidates of one column of categories, along its owner's order."""

    number: int
    """Which of the party's columns of categories."""
    start: int
    size: int
    """``start`` and ``size``: its candidates, among all of the party's."""
    missing: bool
    """Whether the column has missing values; the last candidate is then the sum of the others."""


def chains_of(sizes: Sequence[int], missing: Sequence[bool]) -> tuple[Chain, ...]:
    """Return chains that follow each other from the first candidate on."""
    starts = np.cumsum([0, *sizes]).tolist()
    return tuple(map(Chain, range(len(sizes)), starts, sizes, missing))


@dataclass(frozen=True, slots=True)
class Ways:
    """What goes right in each division of a chain at a node."""

    chain: Chain
    ends: Integers
    """Of shape (n_known,), int64. Candidates of the chain that there are sums of."""
    order: Integers
    """Of shape (n_groups,), int64. Groups of categories by their weight; that after the last sum is
    number ``n_known``."""
    n_steps: int
    """Divisions of this order from either end; with none, each group is divided from the others."""

    def __getitem__(self, k: int) -> CategorySet:
        """Return what goes right in a division."""
        n, known = self.n_steps, len(self.ends)
        if not n:
            right, default_left = self.order[k // 2 : k // 2 + 1], k % 2 == 0
        elif k < n:
            right, default_left = self.order[: k + 1], True
        else:
            right, default_left = self.order[: len(self.order) - 1 - (k - n)], False
        return CategorySet(
            self.chain.number,
            tuple(sorted((self.chain.start + self.ends[right[right < known]]).tolist())),
            bool((right == known).any()),
            default_left,
        )


def groups_of(
    chain: Chain, sums: Integers, allowed: NDArray[np.bool_], total: Integers, party: int
) -> tuple[Integers, Integers]:
    """Return the sums of each group of a chain at a node, and of the missing values apart.

    Parameters and errors are those of :func:`divisions`; at least one sum is allowed.
    """
    nothing = np.zeros((1, len(total)), np.int64)
    ends = np.flatnonzero(allowed)
    bins = np.diff(sums[ends], axis=0, prepend=nothing)
    absent = total - sums[ends[-1]]
    if not (chain.missing and bool(allowed[-1])):
        # What comes after the last sum is one more category, or several.
        bins, absent = np.concatenate([bins, absent[None]]), nothing[0]
    if (bins[:, 1::2] < 0).any():
        raise SumCorrupt(
            f"passive party {party}: expected sums of categories, received some below nothing"
        )
    return bins, absent


def divisions(
    chain: Chain,
    sums: Integers,
    allowed: NDArray[np.bool_],
    total: Integers,
    parameters: TreeParameters,
    scale: Scale,
    party: int,
) -> tuple[Integers, Ways]:
    """Return the divisions of a chain at a node that are worth comparing, as XGBoost's.

    Parameters
    ----------
    sums : ndarray of shape (chain.size, 2 * n_outputs), int64
        Of the chain's candidates.
    allowed : ndarray of shape (chain.size,), bool
        Which of them the owner has sums of.
    total : ndarray of shape (2 * n_outputs,), int64
    party : int
        Number of the owner, for errors.

    Returns
    -------
    left : ndarray of shape (n_divisions, 2 * n_outputs), int64
        Sums of the rows that go left.
    ways : Ways
        What goes right in each.

    Raises
    ------
    SumCorrupt
        A category has less than nothing; names the party.
    """
    ends = np.flatnonzero(allowed)
    if not len(ends):
        return np.zeros((0, len(total)), np.int64), Ways(chain, ends, np.empty(0, np.int64), 0)
    bins, absent = groups_of(chain, sums, allowed, total, party)
    m = len(bins)
    if m < parameters.max_cat_to_onehot or len(total) > 2:
        left = np.repeat(total - bins, 2, axis=0)
        left[1::2] -= absent
        return left, Ways(chain, ends, np.arange(m), 0)
    weights = node_weights(bins, replace(parameters, min_child_weight=0.0), scale)[:, 0]
    order = np.argsort(weights, kind="stable")
    n = max(min(parameters.max_cat_threshold, m) - 1, 0)
    left = np.concatenate(
        [total - np.cumsum(bins[order], axis=0)[:n], np.cumsum(bins[order[::-1]], axis=0)[:n]]
    )
    return left, Ways(chain, ends, order, n)


@dataclass(frozen=True, slots=True)
class CategoryOrder:
    """A passive party's secret orders of categories, the same in all trees of a job."""

    codes: Mapping[int, NDArray[np.int64]]
    """By feature: the code at each place of its order."""
    ends: Mapping[int, NDArray[np.bool_]]
    """By feature: which places are the last of a group, shape (n_categories,), bool. The last place
    is, unless missing values belong to its group."""

    @classmethod
    def draw(
        cls,
        features: Sequence[int],
        binned: BinnedFeatures | SparseFeatures,
        rows: NDArray[np.int64],
        least: int,
        rng: np.random.Generator,
    ) -> CategoryOrder:
        """Draw an order of the categories of each feature, and merge those with few rows.

        Parameters
        ----------
        rows : ndarray of shape (n_rows,), int64
            Rows of training.
        least : int
            Of these, each group has this many or more, also that of missing values, unless all are
            in one group; with 1 every category is a group.
        """
        codes, ends = {}, {}
        for j in features:
            n = int(binned.n_bins[j])
            codes[j] = rng.permutation(n)
            ends[j] = np.ones(n, np.bool_)
            if least <= 1 or not n:
                continue
            counts = np.bincount(binned.column(j)[rows], minlength=n + 1)
            n_missing, since = int(counts[n]), 0
            after = int(counts[codes[j]].sum())
            for place, count in enumerate(counts[codes[j]].tolist()):
                since, after = since + count, after - count
                # Without missing values of their own group the last one takes what is left.
                last = place == n - 1
                if since < least or (n_missing if last else after) < least:
                    ends[j][place] = False
                else:
                    since = 0
        return cls(codes, ends)

    def recoded(self, binned: BinnedFeatures | SparseFeatures) -> BinnedFeatures | SparseFeatures:
        """Return rows whose categories are their places in the order."""
        if not self.codes:
            return binned
        places = {}
        for j, codes in self.codes.items():
            places[j] = np.arange(len(codes) + 1)
            places[j][codes] = np.arange(len(codes))
        return binned.recoded(places)


def places_right(
    asked: CategorySet,
    chain: Chain,
    known: NDArray[np.bool_],
    n_bins: int,
    guarded: bool,
    sender: str,
) -> NDArray[np.bool_]:
    """Return which places of an order go right, and at the end whether missing values do.

    Parameters
    ----------
    known : ndarray of shape (chain.size,), bool
        Candidates of the chain that the active party has sums of.
    guarded : bool
        Whether missing values that training does not have go with the last group, not where the
        sender says: there may be few of them.

    Returns
    -------
    ndarray of shape (n_bins + 1,), bool

    Raises
    ------
    OfferRejected
        The set is none of what was offered; names the sender.
    """
    at = np.array(asked.right, np.int64) - chain.start
    if ((at < 0) | (at >= chain.size)).any() or not known[at].all() or not known.any():
        raise OfferRejected(f"{sender} chose categories that were not offered")
    ends = np.flatnonzero(known)
    apart = chain.missing and bool(known[-1])
    if (asked.rest_right and apart) or not (len(at) or asked.rest_right):
        raise OfferRejected(f"{sender} chose categories that were not offered")
    chosen = np.append(np.isin(ends, at), asked.rest_right)
    out = np.empty(n_bins + 1, np.bool_)
    out[:-1] = chosen[np.searchsorted(ends, np.arange(n_bins))]
    lumped = not apart and (chain.missing or guarded)
    out[-1] = asked.rest_right if lumped else not asked.default_left
    return out
