"""The masks of the sums inside one tree, from the roots that the tree's first sum gave."""

from __future__ import annotations

from hedgerow.boosting.errors import SumRefused
from hedgerow.boosting.exchange import Silo
from hedgerow.crypto.masking import masks
from hedgerow.crypto.vault.interface import TreeRoots


class OpenTree:
    """The masks of the sums inside one tree, over one set."""

    def __init__(self, silo: Silo, present: tuple[Silo, ...], roots: TreeRoots) -> None:
        self.present = present
        self.view = b""
        self._me = present.index(silo)
        self._roots = roots
        self._used: set[bytes] = set()

    def enter(self, view: bytes) -> None:
        """Go on to the sum of a view; raises SumRefused for one that was masked before."""
        if view in self._used:
            raise SumRefused("two sums inside a tree have one view; their masks would be equal")
        self._used.add(view)
        self.view = view

    @property
    def tag(self) -> bytes:
        """What the coordinator compares."""
        key = self._roots.tag_key
        return masks.view_tag(key, self.view) if key else self.view

    def seeds(self) -> tuple[list[bytes], list[bytes]]:
        """Return the seeds that this silo adds, and those that it subtracts."""
        seeds = [
            masks.tree_seed(self._roots.pairs[peer], self.view) if k != self._me else b""
            for k, peer in enumerate(self.present)
        ]
        own = self._roots.group.get(self.present[self._me])
        group = [masks.tree_seed(own, self.view)] if own is not None else []
        return seeds[self._me + 1 :] + group, seeds[: self._me]

    def group_seeds(self, present: tuple[Silo, ...]) -> tuple[bytes, ...]:
        """Return the seeds of the group masks in the sum, to be subtracted."""
        if present != self.present:
            raise SumRefused("a sum inside a tree is over the tree's set, received another one")
        return tuple(masks.tree_seed(self._roots.group[silo], self.view) for silo in present)
