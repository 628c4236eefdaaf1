"""Scoring without showing which leaf a row reaches (EINI).

For every row the active party encrypts one number a leaf, over all trees: the leaf's value where
its own divisions allow the row to reach that leaf, else zero. Each passive party keeps the numbers
of leaves that its own divisions allow and makes fresh encryptions of zero of the others; the last
one adds them up. Exactly one leaf a tree is allowed by all, so the sum is the row's margin, which
the active party decrypts. Every ciphertext that leaves a passive party is re-randomised: an
untouched one, or a plain zero, would show the path.

Rows go in blocks; a block takes one exchange more than there are passive parties.

References
----------
X. Chen et al., EINI: efficient and interpretable inference for vertical federated tree ensembles,
2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError, OfferRejected
from hedgerow.boosting.strategies.secureboost.courier import Courier
from hedgerow.boosting.strategies.secureboost.model import Skeleton
from hedgerow.boosting.strategies.secureboost.routing import Node, Router
from hedgerow.boosting.strategies.secureboost.steps import LEAVES
from hedgerow.crypto.vault import CipherVault

BLOCK_CIPHERTEXTS = 1 << 12
"""Ciphertexts of a block of rows."""
FRACTION_BITS = {"paillier": 40, "elgamal": 20}
"""Of a leaf's value. EC-ElGamal decrypts sums of 40 bits."""
LEAST_PATHS = 64
"""Ways through own divisions over all trees; with fewer, the sum tells the active party the way."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Structures without divisions: what a passive party needs to know of the trees.

    Parameters
    ----------
    left : tuple of tuple of int
        Left children by tree and node, -1 at leaves.
    group : tuple of int
        Output that a tree adds to.
    """

    left: tuple[tuple[int, ...], ...]
    group: tuple[int, ...]

    @classmethod
    def of(cls, trees: Sequence[Skeleton]) -> Shape:
        """Return the shape of trees.

        Raises
        ------
        DataError
            A tree has vector leaves.
        """
        if any(len(tree.groups) != 1 for tree in trees):
            raise DataError("inference = eini: not for trees with vector leaves (multi_output)")
        return cls(tuple(tuple(t.left) for t in trees), tuple(t.groups[0] for t in trees))

    @property
    def leaves(self) -> list[Node]:
        """All leaves: the order of a row's numbers."""
        return [(t, k) for t, own in enumerate(self.left) for k, left in enumerate(own) if left < 0]

    @property
    def groups(self) -> NDArray[np.int64]:
        """Output of each leaf."""
        return np.array([self.group[t] for t, _ in self.leaves], np.int64)

    def pack(self) -> dict[str, NDArray[Any]]:
        """Return arrays for a box."""
        return {
            "left": np.array([x for own in self.left for x in own], np.int32),
            "sizes": np.array([len(own) for own in self.left], np.int64),
            "group": np.array(self.group, np.int32),
        }

    @classmethod
    def unpack(cls, box: dict[str, NDArray[Any]], sender: str) -> Shape:
        """Read :meth:`pack`'s arrays; refuses what are no trees."""
        try:
            left, sizes, group = box["left"], box["sizes"], box["group"]
            edges = np.cumsum([0, *sizes.tolist()])
            trees = [left[a:b].tolist() for a, b in pairwise(edges)]
            fits = len(left) == edges[-1] and len(group) == len(trees)
        except (KeyError, TypeError, ValueError) as error:
            raise OfferRejected(f"{sender} sent no structures") from error
        for own in trees:
            # Every node but the root is a child once, of a node before it.
            children = sorted(c + side for c in own if c >= 0 for side in (0, 1))
            fits &= children == list(range(1, len(own))) and len(own) > 0
            fits &= all(c < 0 or c > k for k, c in enumerate(own))
        if not fits or any(g < 0 for g in group.tolist()):
            raise OfferRejected(f"{sender} sent structures that are no trees")
        return cls(tuple(map(tuple, trees)), tuple(group.tolist()))


def reach(shape: Shape, router: Router) -> NDArray[np.bool_]:
    """Tell which leaves own divisions allow each row: shape (n_rows, n_leaves)."""
    n_rows = len(router.X)
    columns: dict[Node, NDArray[np.bool_]] = {}
    for t, own in enumerate(shape.left):
        allowed = {0: np.ones(n_rows, np.bool_)}
        for node, left in enumerate(own):
            here = allowed.pop(node)
            if left < 0:
                columns[t, node] = here
                continue
            goes_left, goes_right = here, here
            division = router.divisions.get((t, node))
            if division is not None:
                _, feature, threshold, default_left = division
                values = router.X[:, feature]
                is_left = values < np.float32(threshold)
                if default_left:
                    is_left |= np.isnan(values)
                goes_left, goes_right = here & is_left, here & ~is_left
            allowed[left], allowed[left + 1] = goes_left, goes_right
    return np.stack([columns[leaf] for leaf in shape.leaves], axis=1)


def n_paths(shape: Shape, router: Router) -> float:
    """Return in how many ways own divisions can lead through all trees: their product."""
    total = 1.0
    for t, own in enumerate(shape.left):
        ways = [1.0] * len(own)
        for node in range(len(own) - 1, -1, -1):
            if own[node] >= 0:
                sides = ways[own[node]], ways[own[node] + 1]
                ways[node] = sum(sides) if (t, node) in router.divisions else max(sides)
        total *= ways[0] if own else 1.0
    return total


def blocks(n_rows: int, n_leaves: int) -> list[slice]:
    """Return the rows of each block."""
    size = max(1, BLOCK_CIPHERTEXTS // max(n_leaves, 1))
    return [slice(a, min(a + size, n_rows)) for a in range(0, n_rows, size)]


def ask(
    courier: Courier,
    cipher: CipherVault,
    session: str,
    router: Router,
    trees: Sequence[Skeleton],
    others: Sequence[str],
    base: float,
    n_outputs: int,
    bits: int,
    then: str,
) -> NDArray[np.float32]:
    """Score all rows at the active party.

    Returns
    -------
    ndarray of shape (n_rows, n_outputs), float32
        Margins.
    """
    shape = Shape.of(trees)
    mine = reach(shape, router)
    values = np.array([trees[t].value[k][0] for t, k in shape.leaves], np.float64)
    stored = np.rint(np.ldexp(values, bits)).astype(np.int64)
    out = np.full((len(router.X), n_outputs), base, np.float64)
    parts = blocks(len(router.X), len(stored))
    for b, rows in enumerate(parts):
        numbers = np.where(mine[rows], stored, 0)
        boxes = dict.fromkeys(others, shape.pack()) if b == 0 else {}
        block = cipher.encrypt_integers(session, numbers.reshape(-1).tolist())
        received = courier.send(
            LEAVES, boxes=boxes, ciphertexts={others[0]: (block,)}, then=LEAVES.name
        )
        for k in range(len(others)):
            last = b == len(parts) - 1 and k == len(others) - 1
            received = courier.send(LEAVES, then=then if last else LEAVES.name)
        answer = received.ciphertexts.get(others[-1], (b"",))
        sums = np.array(cipher.decrypt_integers(session, answer[0]), np.int64)
        n_groups = len(set(shape.group))
        if sums.shape != (numbers.shape[0] * n_groups,):
            raise OfferRejected(f"{others[-1]} sent {len(sums)} sums, {numbers.shape[0]} expected")
        groups = sorted(set(shape.group))
        out[rows, groups] += np.ldexp(sums.reshape(-1, n_groups).astype(np.float64), -bits)
    return out.astype(np.float32)


def serve(
    courier: Courier,
    cipher: CipherVault,
    public_key: bytes,
    router: Router,
    others: Sequence[str],
) -> str:
    """Help to score all rows, at a passive party; return the step after.

    Raises
    ------
    DataError
        So few ways through own divisions that the sums would tell which one a row takes.
    """
    place = others.index(courier.party)
    receiver = router.active if place == len(others) - 1 else others[place + 1]
    sender = router.active if place == 0 else others[place - 1]
    shape: Shape | None = None
    parts: list[slice] = []
    mine = np.zeros((0, 0), np.bool_)
    b, then = 0, LEAVES.name
    while then == LEAVES.name:
        held: bytes = b""
        for k in range(len(others) + 1):
            send: dict[str, tuple[NDArray[np.uint8], ...]] = {}
            if k == place + 1 and shape is not None:
                last = receiver == router.active
                answer = _answer(cipher, public_key, shape, mine[parts[b]], held, last)
                send[receiver] = (answer,)
            received = courier.send(LEAVES, ciphertexts=send)
            then = received.then
            if shape is None:
                shape = Shape.unpack(dict(received.boxes.get(router.active, {})), router.active)
                if n_paths(shape, router) < LEAST_PATHS and router.divisions:
                    raise DataError(
                        "inference = eini: so few ways through the divisions of "
                        f"{courier.party} that the sums would tell them; use standard"
                    )
                mine = reach(shape, router)
                parts = blocks(len(router.X), len(shape.leaves))
            if k == place:
                held = received.ciphertexts.get(sender, (b"",))[0]
        b += 1
        if then == LEAVES.name and b >= len(parts):
            raise OfferRejected(f"{router.active} goes on after the last rows")
    return then


def _answer(
    cipher: CipherVault,
    public_key: bytes,
    shape: Shape,
    mine: NDArray[np.bool_],
    held: bytes,
    last: bool,
) -> NDArray[np.uint8]:
    """Return each row's numbers with the own ones kept; at the last party their sums."""
    numbers = np.arange(mine.size, dtype=np.uint32).reshape(mine.shape)
    if not last:
        counts = mine.reshape(-1).astype(np.int64)
        index = numbers.reshape(-1)[mine.reshape(-1)]
    else:
        groups = shape.groups
        chosen = [mine & (groups == g) for g in sorted(set(shape.group))]
        counts = np.stack([c.sum(axis=1) for c in chosen], axis=1).reshape(-1).astype(np.int64)
        index = np.concatenate([numbers[r][c[r]] for r in range(len(mine)) for c in chosen])
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return cipher.sum_selected(public_key, held, index, start)
