"""Divisions of a passive party's categories into sets, without showing the active party which.

The owner puts the categories of a column into an order that it draws anew for every tree, and sends
running sums along it, as it does along the bins of a number. Which candidates are of one column,
and their order, it says; which categories they are, it does not. The differences are the sums of
single categories (of several, where few rows were merged). The active party sorts them by the
weight that each would get, takes the best division of this order into two (Fisher, 1958), and
answers with the candidates up to which categories go right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.binning import BinnedFeatures
from hedgerow.boosting.engine.splitting import Scale, TreeParameters, node_weights
from hedgerow.boosting.errors import OfferRejected, SumCorrupt
from hedgerow.boosting.strategies.secureboost.steps import CategorySet

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chain:
    """The candidates of one column of categories, along its owner's order.

    Parameters
    ----------
    number : int
        Which of the party's columns of categories.
    start, size : int
        Its candidates, among all of the party's.
    missing : bool
        Whether the column has missing values; the last candidate is then the sum of the others.
    """

    number: int
    start: int
    size: int
    missing: bool


def chains_of(sizes: Sequence[int], missing: Sequence[bool]) -> tuple[Chain, ...]:
    """Return chains that follow each other from the first candidate on."""
    starts = np.cumsum([0, *sizes]).tolist()
    return tuple(map(Chain, range(len(sizes)), starts, sizes, missing))


def divisions(
    chain: Chain,
    sums: Integers,
    allowed: NDArray[np.bool_],
    total: Integers,
    parameters: TreeParameters,
    scale: Scale,
    party: int,
) -> tuple[Integers, list[CategorySet]]:
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
    sets : list of CategorySet
        What goes right.

    Raises
    ------
    SumCorrupt
        A category has less than nothing; names the party.
    """
    ends = np.flatnonzero(allowed)
    nothing = np.zeros((1, len(total)), np.int64)
    if not len(ends):
        return nothing[:0], []
    bins = np.diff(sums[ends], axis=0, prepend=nothing)
    rest = total - sums[ends[-1]]
    apart = chain.missing and bool(allowed[-1])
    absent = rest if apart else nothing[0]
    if not apart:  # what comes after the last sum is one more category, or several
        bins = np.concatenate([bins, rest[None]])
    if (bins[:, 1::2] < 0).any():
        raise SumCorrupt(
            f"passive party {party}: expected sums of categories, received some below nothing"
        )
    m = len(bins)
    right: list[Sequence[int]]
    if m < parameters.max_cat_to_onehot or len(total) > 2:
        left = np.repeat(total - bins, 2, axis=0)
        left[1::2] -= absent
        right = [[b] for b in range(m) for _ in range(2)]
        default = [True, False] * m
    else:
        weights = node_weights(bins, replace(parameters, min_child_weight=0.0), scale)[:, 0]
        order = np.argsort(weights, kind="stable")
        n = max(min(parameters.max_cat_threshold, m) - 1, 0)
        left = np.concatenate(
            [total - np.cumsum(bins[order], axis=0)[:n], np.cumsum(bins[order[::-1]], axis=0)[:n]]
        )
        right = [order[: k + 1].tolist() for k in range(n)]
        right += [order[: m - 1 - k].tolist() for k in range(n)]
        default = [True] * n + [False] * n
    known = len(ends)
    return left, [
        CategorySet(
            chain.number,
            tuple(sorted(int(chain.start + ends[b]) for b in own if b < known)),
            any(b == known for b in own),
            goes,
        )
        for own, goes in zip(right, default, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class CategoryOrder:
    """A passive party's orders of categories, for one tree.

    Parameters
    ----------
    codes : Mapping
        By feature: the code at each place of its order.
    """

    codes: Mapping[int, NDArray[np.int64]]

    @classmethod
    def draw(
        cls, features: Sequence[int], n_bins: NDArray[np.int64], rng: np.random.Generator
    ) -> CategoryOrder:
        """Draw an order of the categories of each feature."""
        return cls({int(j): rng.permutation(int(n_bins[j])) for j in features})

    def recoded(self, binned: BinnedFeatures) -> BinnedFeatures:
        """Return rows whose categories are their places in the order."""
        if not self.codes:
            return binned
        by_feature = np.array(binned.by_feature)
        for j, codes in self.codes.items():
            places = np.arange(len(codes) + 1)
            places[codes] = np.arange(len(codes))
            by_feature[j] = places[by_feature[j]]
        return replace(binned, by_row=np.ascontiguousarray(by_feature.T), by_feature=by_feature)


def places_right(
    asked: CategorySet, chain: Chain, known: NDArray[np.bool_], n_bins: int, sender: str
) -> NDArray[np.bool_]:
    """Return which places of an order go right, and at the end whether missing values do.

    Parameters
    ----------
    known : ndarray of shape (chain.size,), bool
        Candidates of the chain that the active party has sums of.

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
    out[-1] = asked.rest_right if chain.missing and not apart else not asked.default_left
    return out
