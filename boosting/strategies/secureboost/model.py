"""A party's part of a vertical model: what it holds, keeps between rounds, and can print."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.checkpoints import readable, whole
from hedgerow.boosting.checks import read_as
from hedgerow.boosting.errors import DataError

FORMAT, FORMAT_WITH_SETS, FORMAT_WITH_LEAF_NUMBERS = 1, 2, 3
"""Of parts; a reader that knows no sets, or no leaf numbers, would send their rows astray."""
WHOLE = -1
"""Feature of a tree of which only leaves are kept: stands for all of the party's tree."""
ACTIVE_REVEALS = (
    "Structures of all trees, whose division each node is, leaf values, how much each division "
    "gained (of a passive party's trees in the mode mix only the leaves, unless the job has "
    "passive_trees = 'structure'), and this party's own thresholds. With rows of this party's "
    "columns it tells what trees without the other parties' divisions would. Leaf values are means "
    "over few rows where leaves are small. Of other parties' features only how often each "
    "anonymous one divides."
)
PASSIVE_REVEALS = (
    "This party's own divisions: which of its features divide which node of which tree, and "
    "where. Thresholds lie between values of its own rows. No labels, leaf values or gains, and "
    "of other passive parties only which nodes are theirs."
)
"""What a part reveals to its reader."""


@dataclass(slots=True)
class TreeStructure:
    """One tree as the active party keeps it."""

    round: int
    groups: list[int]
    """Outputs that the tree adds to."""
    left: list[int]
    """Left child or -1; the right child is the next number."""
    owner: list[int]
    """Whose division a node has: 0 the active party's, k the k-th passive party's, -1 a leaf."""
    feature: list[int]
    """Of the active party's own divisions; at a passive party's, the number under which that party
    keeps the feature anonymous; 0 at leaves; :data:`WHOLE` where :attr:`leaves_only`."""
    threshold: list[float]
    default_left: list[bool]
    """``threshold`` and ``default_left``: of the active party's own divisions; zeros elsewhere."""
    value: list[list[float]]
    """Leaf values by output, shrinkage included."""
    gain: list[float]
    cover: list[float]
    sets: dict[str, list[int]] = field(default_factory=dict)
    """By node, where the active party divides categories into sets: the codes that go right."""
    leaves_only: bool = False
    """The tree is a passive party's alone, of which there are no more than the leaves here; its
    nodes search for the leaf's number, see :mod:`~.divisions`."""


@dataclass(slots=True)
class ActivePart:
    """The active party's part: structures, owners, own divisions and leaf values.

    ``base_margins`` are the columns in which rows bring theirs; ``base_margin`` is added to them.
    ``calibration`` is the scale and the shift that margins got, see :mod:`~.platt`; empty for none.
    """

    party: str
    parties: list[str]
    model: str
    objective: str
    model_objective: str
    task: str
    n_outputs: int
    base_margin: float
    features: list[str]
    categories: dict[str, list[str]]
    label: str
    classes: list[str]
    trees: list[TreeStructure] = field(default_factory=list)
    best_round: int = 0
    base_margins: list[str] = field(default_factory=list)
    calibration: list[float] = field(default_factory=list)
    alignment: dict[str, int] = field(default_factory=dict)
    numbered: bool = False
    role: str = "active"

    @property
    def digest(self) -> str:
        """SHA-256 of structures and owners; ties the parties' parts together."""
        text = json.dumps([self.model, [[t.left, t.owner] for t in self.trees]])
        return hashlib.sha256(text.encode()).hexdigest()

    def start(self, n_rows: int, brought: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """Return the margins that rows begin with, shape (n_rows, n_outputs).

        Parameters
        ----------
        brought : ndarray of shape (n_rows, n_outputs), float32, or None
            The rows' own.

        Raises
        ------
        DataError
            Rows bring none and the model was trained from some, or the other way round.
        """
        if (brought is not None) != bool(self.base_margins):
            raise DataError(
                f"the model was trained {'from' if self.base_margins else 'without'} base margins "
                f"{', '.join(self.base_margins)}".rstrip()
                + ", the rows have "
                + ("none" if self.base_margins else "some")
            )
        out = np.full((n_rows, self.n_outputs), self.base_margin, np.float32)
        if brought is not None:
            if brought.shape != out.shape:
                raise DataError(
                    f"base margins: expected {self.n_outputs} columns, received {brought.shape[1]}"
                )
            out += brought
        return out

    def calibrate(self) -> None:
        """Take the scale and shift of ``calibration`` into leaf values and base margin."""
        scale, shift = self.calibration
        self.base_margin = scale * self.base_margin + shift
        for tree in self.trees:
            tree.value = numbers(np.array(tree.value, np.float32) * np.float32(scale))

    @property
    def used_trees(self) -> list[TreeStructure]:
        """The trees up to the best round."""
        return [tree for tree in self.trees if tree.round <= self.best_round]

    def importance(self) -> dict[str, dict[str, float]]:
        """Return how often a feature divides, and its gains, in the trees up to the best round.

        Passive features are counted by anonymous number.
        """
        found: dict[str, dict[str, float]] = {}
        for tree in (tree for tree in self.used_trees if not tree.leaves_only):
            for owner, feature, gain in zip(tree.owner, tree.feature, tree.gain, strict=True):
                if owner < 0:
                    continue
                foreign = f"{self.parties[owner]}:{feature}"
                entry = found.setdefault(
                    foreign if owner else self.features[feature], {"splits": 0, "gain": 0.0}
                )
                entry["splits"] += 1
                entry["gain"] += gain
        return found

    def dump(self) -> bytes:
        """Return the part as a JSON file."""
        return _dump(
            {
                **_header(
                    any(tree.sets for tree in self.trees),
                    any(tree.leaves_only for tree in self.trees),
                ),
                **_fields(self),
                "trees": [_fields(tree) for tree in self.trees],
                "digest": self.digest,
                "importance": self.importance(),
                "reveals": ACTIVE_REVEALS,
            }
        )

    @classmethod
    def load(cls, data: bytes) -> ActivePart:
        """Return the part of a file.

        Raises
        ------
        DataError
            The file is no active party's part.
        """
        part: ActivePart = _load(data, "active", cls)
        if part.base_margins and len(part.base_margins) != part.n_outputs:
            raise DataError("a model part with base margins of another number of outputs")
        if len(part.calibration) not in (0, 2):
            raise DataError("a model part with a calibration that is no scale and shift")
        for number, tree in enumerate(part.trees):
            _check_tree(part, tree, f"tree {number}")
        return part


@dataclass(slots=True)
class PassivePart:
    """A passive party's part: its own divisions, which nobody else has."""

    party: str
    model: str
    features: list[str]
    categories: dict[str, list[str]]
    nodes: dict[str, list[Any]] = field(default_factory=dict)
    """``"tree:node"`` to left child, feature, threshold and whether missing values go left."""
    next_owner: dict[str, str] = field(default_factory=dict)
    """``"tree:node"`` to the passive party that divides it, for children of own nodes; nodes that
    are not here are the active party's, or leaves."""
    digest: str = ""
    """Of the structures that the active party has, as it reported at the end of each round."""
    anonymous: list[int] = field(default_factory=list)
    """Under which number the active party counts the divisions of each feature."""
    n_trees: int = 0
    n_used: int = 0
    """``n_trees`` and ``n_used``: all trees, and those up to the best round."""
    sets: dict[str, list[int]] = field(default_factory=dict)
    """``"tree:node"`` of divisions of categories into sets to the codes that go right."""
    whole: dict[str, list[int]] = field(default_factory=dict)
    """Trees that are this party's alone, of which the active party keeps only the leaves: by tree
    its leaves in the order of their numbers."""
    alignment: dict[str, int] = field(default_factory=dict)
    role: str = "passive"

    def importance(self) -> dict[str, dict[str, float]]:
        """Return how often each own feature divides up to the best round; gains are not known."""
        found: dict[str, dict[str, float]] = {}
        for place, (_, feature, _, _) in self.nodes.items():
            if node_of(place)[0] >= self.n_used:
                continue
            entry = found.setdefault(self.features[feature], {"splits": 0})
            entry["splits"] += 1
        return found

    def dump(self) -> bytes:
        """Return the part as a JSON file."""
        more = {"importance": self.importance(), "reveals": PASSIVE_REVEALS}
        header = _header(bool(self.sets), bool(self.whole))
        return _dump({**header, **_fields(self), **more})

    @classmethod
    def load(cls, data: bytes) -> PassivePart:
        """Return the part of a file.

        Raises
        ------
        DataError
            The file is no passive party's part.
        """
        part: PassivePart = _load(data, "passive", cls)
        for key, division in part.nodes.items():
            tree, node = node_of(key)
            kinds = [type(value) for value in division]
            if kinds not in ([int, int, float, bool], [int, int, int, bool]):
                raise DataError("a model part with a division that is none")
            left, feature, threshold, _ = division
            read_as(float, threshold, "threshold")
            if tree >= part.n_trees or left <= node or not 0 <= feature < len(part.features):
                raise DataError(f"a model part whose node {key[:40]} is out of range")
        for key in part.next_owner:
            node_of(key)
        _check_whole(part)
        for key, codes in part.sets.items():
            own = part.nodes.get(key)
            name = part.features[own[1]] if own else ""
            _check_set(codes, part.categories.get(name, []))
        return part


def _header(sets: bool, leaf_numbers: bool) -> dict[str, Any]:
    version = FORMAT_WITH_SETS if sets else FORMAT
    version = FORMAT_WITH_LEAF_NUMBERS if leaf_numbers else version
    return {"format": version, "strategy": "secureboost"}


def is_part(data: bytes) -> bool:
    """Whether a file begins as a party's part does; what it is else, loading tells."""
    return b'"secureboost"' in data[:200]


def _fields(record: object) -> dict[str, Any]:
    """Return a record's fields as they are: ``asdict`` would copy every number of every tree."""
    return {f.name: getattr(record, f.name) for f in fields(record)}  # type: ignore[arg-type]


def _dump(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, allow_nan=False) + "\n").encode()


def _load(data: bytes, role: str, kind: type[Any]) -> Any:
    with readable("a part of a vertical model"):
        document = json.loads(data)
        known = document["format"] in (FORMAT, FORMAT_WITH_SETS, FORMAT_WITH_LEAF_NUMBERS)
        if not known or document["strategy"] != "secureboost":
            raise DataError("a model part of another version or strategy")
        if document["role"] != role:
            raise DataError(f"expected the part of the {role} party")
        names = {f.name for f in fields(kind)}
        if role == "active":
            document = {
                "base_margins": [],
                "calibration": [],
                "numbered": False,
                **document,
            }  # older parts
            older = {"sets": {}, "leaves_only": False}
            document["trees"] = [{**older, **tree} for tree in document["trees"]]
        document = {"sets": {}, "whole": {}, **document}
        return read_as(kind, {name: document[name] for name in names})


def search(n_leaves: int) -> list[tuple[int, int]]:
    """Return the binary search for a leaf's number.

    Returns
    -------
    list of (int, int)
        By node: the left child, of which numbers are smaller than the second; at leaves -1 and the
        number. The right child is the next.
    """
    nodes: list[tuple[int, int]] = []
    ranges = [(0, n_leaves)]
    for first, end in ranges:
        if end - first == 1:
            nodes.append((-1, first))
            continue
        middle = (first + end) // 2
        nodes.append((len(ranges), middle))
        ranges += [(first, middle), (middle, end)]
    return nodes


def _check_tree(part: ActivePart, tree: TreeStructure, name: str) -> None:
    """Refuse a tree whose nodes form none, or name a party, feature or output that is not there."""
    n = len(tree.left)
    columns = (
        tree.owner, tree.feature, tree.threshold, tree.default_left, tree.value, tree.gain,
        tree.cover,
    )  # fmt: skip
    splits = [node for node, left in enumerate(tree.left) if left >= 0]
    children = [child for node in splits for child in (tree.left[node], tree.left[node] + 1)]
    owners = {owner for owner in tree.owner if owner >= 0}
    searched = n % 2 == 1 and tree.left == [left for left, _ in search(n // 2 + 1)]
    sound = (
        all(len(column) == n for column in columns)
        and sorted(children) == list(range(1, n))
        and all(tree.left[node] > node for node in splits)
        and all((tree.left[node] >= 0) == (tree.owner[node] >= 0) for node in range(n))
        and all(owner < len(part.parties) for owner in tree.owner)
        and all(0 <= tree.feature[k] < len(part.features) for k in splits if tree.owner[k] == 0)
        and all(0 <= group < part.n_outputs for group in tree.groups)
        and (not tree.leaves_only or (len(owners) == 1 and owners != {0} and searched))
        and all(len(value) == len(tree.groups) for value in tree.value)
    )
    for node, codes in tree.sets.items():
        with readable("names of nodes in a model part"):
            own = whole(int(node), n)
        sound = sound and own < n and tree.owner[own] == 0
        if sound:
            _check_set(codes, part.categories.get(part.features[tree.feature[own]], []))
    if not sound or not n:
        raise DataError(f"{name} of a model part: expected nodes that form a tree")


def _check_whole(part: PassivePart) -> None:
    """Refuse a tree of this party alone whose nodes form none, or leaves that are not its."""
    inner: dict[int, dict[int, int]] = {}
    for key, division in part.nodes.items():
        tree, node = node_of(key)
        inner.setdefault(tree, {})[node] = division[0]
    for name, order in part.whole.items():
        with readable("names of trees in a model part"):
            left = inner.get(whole(int(name), part.n_trees + 1), {})
        children = sorted(child + side for child in left.values() for side in (0, 1))
        nodes = range(2 * len(left) + 1)
        if children != list(nodes[1:]) or sorted([*left, *order]) != list(nodes):
            raise DataError(f"tree {name[:40]} of a model part: expected nodes that form a tree")


def _check_set(codes: Sequence[int], categories: Sequence[str]) -> None:
    if not codes or any(not 0 <= code < len(categories) for code in codes):
        raise DataError("a model part with a set of categories that are none")


def node_of(key: str) -> tuple[int, int]:
    """Return tree and node of a node's name."""
    tree, _, node = key.partition(":")
    with readable("names of nodes in a model part"):
        return whole(int(tree)), whole(int(node), 1 << 31)


def load_part(data: bytes) -> ActivePart | PassivePart:
    """Return the part of a file, of either kind.

    Raises
    ------
    DataError
        The file is no part.
    """
    with readable("a part of a vertical model"):
        role = json.loads(data)["role"]
    return ActivePart.load(data) if role == "active" else PassivePart.load(data)


def numbers(values: NDArray[np.generic] | Sequence[Any]) -> list[Any]:
    """Return an array as a list of Python's numbers."""
    return list(np.asarray(values).tolist())
