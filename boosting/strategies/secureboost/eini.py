"""Scoring without showing which leaf a row reaches (EINI).

For every row the active party encrypts one number a leaf and output, over all trees: the leaf's
value where its own divisions allow the row to reach that leaf, else zero. Each passive party keeps
the numbers of leaves that its own divisions allow and makes fresh encryptions of zero of the
others; the last one adds them up. Exactly one leaf a tree is allowed by all, so the sums are the
row's margins, which the active party decrypts. Every ciphertext that leaves a passive party is
re-randomised: an untouched one, or a plain zero, would show the path.

Rows go in blocks; a block takes one exchange more than there are passive parties.

References
----------
X. Chen et al., EINI: efficient and interpretable inference for vertical federated tree ensembles,
2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError, OfferRejected
from hedgerow.boosting.strategies.secureboost.courier import SealedChannel
from hedgerow.boosting.strategies.secureboost.divisions import Node
from hedgerow.boosting.strategies.secureboost.model import ActivePart, TreeStructure
from hedgerow.boosting.strategies.secureboost.routing import Router
from hedgerow.boosting.strategies.secureboost.steps import (
    LEAVES,
    StepName,
    TreeShape,
    TreeShapes,
)
from hedgerow.crypto.vault.interface import CipherVault

BLOCK_CIPHERTEXTS = 1 << 12
"""Ciphertexts of a block of rows."""
FRACTION_BITS = {"paillier": 40, "elgamal": 20}
"""Of a leaf's value. EC-ElGamal decrypts sums of 40 bits."""
MOST_NUMBERS = 1 << 20
"""Of a row: leaves, and outputs of each; one row's ciphertexts take 512 MB then."""
LEAST_PATHS = 64
"""Ways through own divisions over all trees; fewer, and a sum could reveal the way."""


class Leaf(NamedTuple):
    """A leaf, and one of the outputs that it adds to."""

    tree: int
    node: int
    output: int


def shapes_of(trees: Sequence[TreeStructure]) -> TreeShapes:
    """Return the shapes of trees: what a passive party needs to know of them.

    Raises
    ------
    DataError
        More leaves than can be scored so.
    """
    shapes = TreeShapes(
        tuple(
            TreeShape(() if k else tuple(tree.left), output)
            for tree in trees
            for k, output in enumerate(tree.groups)
        )
    )
    if n_numbers(shapes) > MOST_NUMBERS:
        raise DataError(
            f"inference = eini: expected at most {MOST_NUMBERS} leaves and outputs of leaves, the "
            f"model has {n_numbers(shapes)}"
        )
    return shapes


def n_numbers(shapes: TreeShapes) -> int:
    """Return how many numbers a row has: one a leaf and output."""
    total = leaves = 0
    for tree in shapes.trees:
        if tree.left:
            leaves = sum(left < 0 for left in tree.left)
        total += leaves
    return total


def structures_of(shapes: TreeShapes) -> list[tuple[int, ...]]:
    """Return the structure of each tree, those of vector leaves once."""
    return [tree.left for tree in shapes.trees if tree.left]


def check_shapes(shapes: TreeShapes, sender: str) -> None:
    """Raise :class:`OfferRejected` for structures that are no trees; names the sender."""
    structures = structures_of(shapes)
    if not structures or not shapes.trees[0].left or n_numbers(shapes) > MOST_NUMBERS:
        raise OfferRejected(f"{sender} sent structures that are no trees, or too many")
    for own in structures:
        # Every node but the root is a child once, of a node before it.
        children = sorted(c + side for c in own if c >= 0 for side in (0, 1))
        fits = children == list(range(1, len(own)))
        if not fits or any(0 <= c <= k for k, c in enumerate(own)):
            raise OfferRejected(f"{sender} sent structures that are no trees")


def leaves_of(shapes: TreeShapes) -> list[Leaf]:
    """Return all leaves: the order of a row's numbers."""
    found: list[Leaf] = []
    own: tuple[int, ...] = ()
    t = -1
    for tree in shapes.trees:
        if tree.left:
            t, own = t + 1, tree.left
        found += [Leaf(t, k, tree.output) for k, left in enumerate(own) if left < 0]
    return found


def reach(shapes: TreeShapes, router: Router) -> NDArray[np.bool_]:
    """Return which leaves own divisions allow each row: shape (n_rows, n_leaves)."""
    n_rows = router.n_rows
    columns: dict[Node, NDArray[np.bool_]] = {}
    for t, own in enumerate(structures_of(shapes)):
        allowed = {0: np.ones(n_rows, np.bool_)}
        for node, left in enumerate(own):
            here = allowed.pop(node)
            if left < 0:
                columns[t, node] = here
                continue
            goes_left, goes_right = here, here
            division = router.divisions.get((t, node))
            if division is not None:
                is_left = division.goes_left(router.column(division.feature))
                goes_left, goes_right = here & is_left, here & ~is_left
            allowed[left], allowed[left + 1] = goes_left, goes_right
    return np.stack([columns[leaf.tree, leaf.node] for leaf in leaves_of(shapes)], axis=1)


def n_paths(shapes: TreeShapes, router: Router) -> float:
    """Return in how many ways own divisions can lead through all trees: their product."""
    total = 1.0
    for t, own in enumerate(structures_of(shapes)):
        ways = [1.0] * len(own)
        for node in range(len(own) - 1, -1, -1):
            if own[node] >= 0:
                sides = ways[own[node]], ways[own[node] + 1]
                ways[node] = sum(sides) if (t, node) in router.divisions else max(sides)
        total *= ways[0]
    return total


def blocks(n_rows: int, n_leaves: int) -> list[slice]:
    """Return the rows of each block."""
    size = max(1, BLOCK_CIPHERTEXTS // max(n_leaves, 1))
    return [slice(a, min(a + size, n_rows)) for a in range(0, n_rows, size)]


def ask(
    courier: SealedChannel,
    vault: CipherVault,
    session: str,
    router: Router,
    part: ActivePart,
    start: NDArray[np.float32],
    bits: int,
    then: StepName,
) -> NDArray[np.float32]:
    """Score all rows at the active party.

    Parameters
    ----------
    start : ndarray of shape (n_rows, n_outputs), float32
        Margins that rows begin with.
    bits : int
        Fraction bits of a leaf's value, see :data:`FRACTION_BITS`.

    Returns
    -------
    ndarray of shape (n_rows, n_outputs), float32
        Margins.
    """
    trees, others = part.used_trees, part.parties[1:]
    shapes = shapes_of(trees)
    mine = reach(shapes, router)
    leaves = leaves_of(shapes)
    values = np.array(
        [trees[t].value[k][trees[t].groups.index(output)] for t, k, output in leaves], np.float64
    )
    stored = np.rint(np.ldexp(values, bits)).astype(np.int64)
    outputs = sorted({leaf.output for leaf in leaves})
    out = start.astype(np.float64)
    parts = blocks(router.n_rows, len(stored))
    for b, rows in enumerate(parts):
        numbers = np.where(mine[rows], stored, 0)
        boxes = dict.fromkeys(others, shapes) if b == 0 else {}
        block = vault.encrypt_integers(session, numbers.reshape(-1).tolist())
        received = courier.send(
            LEAVES, boxes=boxes, ciphertexts={others[0]: (block,)}, then=StepName.LEAVES
        )
        for k in range(len(others)):
            last = b == len(parts) - 1 and k == len(others) - 1
            received = courier.send(LEAVES, then=then if last else StepName.LEAVES)
        answer = received.ciphertexts.get(others[-1], (b"",))
        sums = np.array(vault.decrypt_integers(session, answer[0]), np.int64)
        n_expected = numbers.shape[0] * len(outputs)
        if sums.shape != (n_expected,):
            raise OfferRejected(f"{others[-1]}: expected {n_expected} sums, received {len(sums)}")
        scaled = np.ldexp(sums.reshape(-1, len(outputs)).astype(np.float64), -bits)
        out[rows, outputs] += scaled
    return out.astype(np.float32)


def serve(
    courier: SealedChannel,
    vault: CipherVault,
    public_key: bytes,
    router: Router,
    others: Sequence[str],
) -> StepName:
    """Help to score all rows, at a passive party; return the step after.

    Raises
    ------
    DataError
        So few ways through own divisions that the sums would reveal which one a row takes.
    """
    place = others.index(courier.party)
    receiver = router.active if place == len(others) - 1 else others[place + 1]
    sender = router.active if place == 0 else others[place - 1]
    shapes: TreeShapes | None = None
    parts: list[slice] = []
    mine = np.zeros((0, 0), np.bool_)
    b, then = 0, StepName.LEAVES
    while then is StepName.LEAVES:
        held: bytes = b""
        for k in range(len(others) + 1):
            send: dict[str, tuple[NDArray[np.uint8], ...]] = {}
            if k == place + 1 and shapes is not None:
                last = receiver == router.active
                counts, index = _kept(shapes, mine[parts[b]], last)
                start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
                send[receiver] = (vault.sum_selected(public_key, held, index, start),)
            received = courier.send(LEAVES, ciphertexts=send)
            then = received.then
            if shapes is None:
                shapes = received.read(router.active, TreeShapes)
                check_shapes(shapes, router.active)
                if n_paths(shapes, router) < LEAST_PATHS and router.divisions:
                    raise DataError(
                        "inference = eini: so few ways through the divisions of "
                        f"{courier.party} that the sums would reveal them; use standard"
                    )
                mine = reach(shapes, router)
                parts = blocks(router.n_rows, len(leaves_of(shapes)))
            if k == place:
                held = received.ciphertexts.get(sender, (b"",))[0]
        b += 1
        if then is StepName.LEAVES and b >= len(parts):
            raise OfferRejected(f"{router.active} goes on after the last rows")
    return then


def _kept(
    shapes: TreeShapes, mine: NDArray[np.bool_], last: bool
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return how many of a block's numbers each sum has, and which: at the last party by output."""
    numbers = np.arange(mine.size, dtype=np.uint32).reshape(mine.shape)
    if not last:
        return mine.reshape(-1).astype(np.int64), numbers.reshape(-1)[mine.reshape(-1)]
    outputs = np.array([leaf.output for leaf in leaves_of(shapes)], np.int64)
    chosen = [mine & (outputs == output) for output in sorted(set(outputs.tolist()))]
    counts = np.stack([c.sum(axis=1) for c in chosen], axis=1).reshape(-1).astype(np.int64)
    return counts, np.concatenate([numbers[r][c[r]] for r in range(len(mine)) for c in chosen])
