"""A party's part of a vertical model: what it holds, keeps between rounds, and can print."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError

FORMAT = 1
ACTIVE_REVEALS = (
    "Structures of all trees, whose division each node is, leaf values, how much each division "
    "gained, and this party's own thresholds. With rows of this party's columns it tells what "
    "trees without the other parties' divisions would. Leaf values are means over few rows where "
    "leaves are small. Of other parties' features only how often each anonymous one divides."
)
PASSIVE_REVEALS = (
    "This party's own divisions: which of its features divide which node of which tree, and "
    "where. Thresholds lie between values of its own rows. No labels, leaf values or gains, and "
    "of other passive parties only which nodes are theirs."
)
"""What a part shows whoever reads it."""


@dataclass(slots=True)
class Skeleton:
    """One tree as the active party keeps it.

    Parameters
    ----------
    round : int
    groups : list of int
        Outputs that the tree adds to.
    left : list of int
        Left child or -1; the right child is the next number.
    owner : list of int
        Whose division a node has: 0 the active party's, k the k-th passive party's, -1 a leaf.
    feature : list of int
        Of the active party's own divisions; at a passive party's, the number under which that
        party keeps the feature anonymous; 0 at leaves.
    threshold, default_left : list
        Of the active party's own divisions; zeros elsewhere.
    value : list of list of float
        Leaf values by output, shrinkage included.
    gain, cover : list of float
    """

    round: int
    groups: list[int]
    left: list[int]
    owner: list[int]
    feature: list[int]
    threshold: list[float]
    default_left: list[bool]
    value: list[list[float]]
    gain: list[float]
    cover: list[float]


@dataclass(slots=True)
class ActivePart:
    """The active party's part: structures, owners, own divisions and leaf values."""

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
    trees: list[Skeleton] = field(default_factory=list)
    best_round: int = 0
    alignment: dict[str, int] = field(default_factory=dict)
    role: str = "active"

    @property
    def digest(self) -> str:
        """SHA-256 of structures and owners; ties the parties' parts together."""
        text = json.dumps([self.model, [[t.left, t.owner] for t in self.trees]])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def used_trees(self) -> list[Skeleton]:
        """The trees up to the best round."""
        return [tree for tree in self.trees if tree.round <= self.best_round]

    def importance(self) -> dict[str, dict[str, float]]:
        """Return how often a feature divides, and its gains; passive ones by anonymous number."""
        found: dict[str, dict[str, float]] = {}
        for tree in self.trees:
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
        document = {"format": FORMAT, "strategy": "secureboost", **asdict(self)}
        return _dump(
            {
                **document,
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
        document = _load(data, "active")
        trees = [Skeleton(**tree) for tree in document.pop("trees")]
        return cls(**_known(cls, document), trees=trees)


@dataclass(slots=True)
class PassivePart:
    """A passive party's part: its own divisions, which nobody else has.

    Parameters
    ----------
    nodes : dict of str to list
        ``"tree:node"`` to left child, feature, threshold and whether missing values go left.
    next_owner : dict of str to str
        ``"tree:node"`` to the passive party that divides it, for children of own nodes; nodes that
        are not here are the active party's, or leaves.
    digest : str
        Of the structures that the active party has, as it reported at the end of each round.
    anonymous : list of int
        Under which number the active party counts the divisions of each feature.
    n_trees, n_used : int
        All trees, and those up to the best round.
    """

    party: str
    model: str
    features: list[str]
    categories: dict[str, list[str]]
    nodes: dict[str, list[Any]] = field(default_factory=dict)
    next_owner: dict[str, str] = field(default_factory=dict)
    digest: str = ""
    anonymous: list[int] = field(default_factory=list)
    n_trees: int = 0
    n_used: int = 0
    alignment: dict[str, int] = field(default_factory=dict)
    role: str = "passive"

    def importance(self) -> dict[str, dict[str, float]]:
        """Return how often each own feature divides; gains are not known here."""
        found: dict[str, dict[str, float]] = {}
        for _, feature, _, _ in self.nodes.values():
            entry = found.setdefault(self.features[feature], {"splits": 0})
            entry["splits"] += 1
        return found

    def dump(self) -> bytes:
        """Return the part as a JSON file."""
        document = {"format": FORMAT, "strategy": "secureboost", **asdict(self)}
        return _dump({**document, "importance": self.importance(), "reveals": PASSIVE_REVEALS})

    @classmethod
    def load(cls, data: bytes) -> PassivePart:
        """Return the part of a file.

        Raises
        ------
        DataError
            The file is no passive party's part.
        """
        return cls(**_known(cls, _load(data, "passive")))


def _dump(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, allow_nan=False) + "\n").encode()


def _load(data: bytes, role: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
        if document["format"] != FORMAT or document["strategy"] != "secureboost":
            raise DataError("a model part of another version or strategy")
        if document["role"] != role:
            raise DataError(f"expected the part of the {role} party, got {document['role']}")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError("not a part of a vertical model") from error
    return dict(document)


def _known(kind: type[Any], document: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)} - {"trees"}
    try:
        return {name: document[name] for name in names}
    except KeyError as error:
        raise DataError(f"a model part without {error}") from error


def load_part(data: bytes) -> ActivePart | PassivePart:
    """Return the part of a file, of either kind.

    Raises
    ------
    DataError
        The file is no part.
    """
    try:
        role = json.loads(data)["role"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError("not a part of a vertical model") from error
    return ActivePart.load(data) if role == "active" else PassivePart.load(data)


def numbers(values: NDArray[np.generic] | Sequence[Any]) -> list[Any]:
    """Return an array as a list of Python's numbers."""
    return list(np.asarray(values).tolist())
