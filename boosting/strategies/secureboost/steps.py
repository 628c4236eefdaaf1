"""The exchanges of a vertical job: their names, their payloads, and what they reveal.

Parties exchange with each other, and the coordinator forwards. An exchange is one or more passes
(:class:`RelayPass`) of pieces of a few MiB, so that the coordinator holds little, however many rows
there are. Public keys and ciphertexts are readable; everything else is in boxes that one party
seals for another. A box contains one of the payloads from :class:`DigestKey` on.

Bits are packed eight to a byte, most significant first. Nodes of a tree are numbered in the order
in which they are made, the root is 0, and two siblings have consecutive numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.exchange import Call, Discloses, Step
from hedgerow.boosting.payloads import Elements, Int32s
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.intersection.psi import PsiKind

EVERYONE = ""
"""Receiver of ciphertexts and keys that all other parties get."""
PIECE_BYTES = 1 << 20
"""Largest piece: a frame."""
PASS_PIECES = 2
"""Pieces of a party in one pass."""
LARGE_PASSES = 4
"""Passes after which freed heap is returned to the operating system (malloc_trim)."""
LEAST_CLASS = 256
"""Smallest size class."""
BATCH_DIVISIONS = 1 << 14
"""Candidates that are summed or decrypted at a time; 8 MB of ciphertexts at 2048 bits."""
NO_ROWS, ALL_ROWS = -1, -2
"""Sums of a candidate that need no ciphertext: zero, and the node's total."""


def size_class(n: int) -> int:
    """Return ``n`` rounded up to one of eight sizes an octave; by at most an eighth of it."""
    step = 1 << max(max(n, LEAST_CLASS).bit_length() - 4, 0)
    return -(-max(n, LEAST_CLASS) // step) * step


def batches(n_nodes: int, n_candidates: int, most: int = 0) -> list[slice]:
    """Return which nodes' sums are packed together: few enough to bound memory.

    Parameters
    ----------
    most : int
        Nodes of a batch; 0 for as many as have :data:`BATCH_DIVISIONS` candidates.
    """
    size = most or max(1, BATCH_DIVISIONS // max(n_candidates, 1))
    return [slice(a, a + size) for a in range(0, n_nodes, size)]


def source_bytes(n: int) -> int:
    """Return the bytes of an element of :attr:`CandidateSums.sources` for ``n`` candidates."""
    return 2 if n < 1 << 15 else 4


class StepName(Enum):
    """The steps; after each exchange the active party names the next one."""

    KEYS = "keys"
    IDENTIFIERS = "identifiers"
    GRADIENTS = "gradients"
    HISTOGRAMS = "histograms"
    SPLITS = "splits"
    BITMAPS = "bitmaps"
    SCORES = "scores"
    MARGINS = "margins"
    LEAVES = "leaves"
    END = "end"


class RowSet(Enum):
    """Rows that are scored."""

    TRAIN = "train"
    VALID = "valid"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class SealedPiece:
    """Some bytes of a box."""

    party: str
    """In an offer the receiver, in a reply the sender; so for all pieces."""
    data: bytes
    """At most :data:`PIECE_BYTES`; as many in all pieces of a box but the last."""


@dataclass(frozen=True, slots=True)
class CiphertextPiece:
    """Some bytes of a block of ciphertexts."""

    party: str
    """Also :data:`EVERYONE`."""
    part: int
    """Which ciphertext of a row, where its classes need several."""
    data: bytes
    """At most :data:`PIECE_BYTES`; as many in all pieces of a block but the last."""


@dataclass(frozen=True, slots=True)
class PartyKeys:
    """A party's public keys for one attempt, and what it brings; signed with its certificate."""

    party: str
    """:data:`EVERYONE` in an offer."""
    box_key: bytes
    """X25519, 32 bytes."""
    cipher_key: bytes
    """The active party's, for gradients; empty where nothing is encrypted."""
    has_test: bool
    """Whether it has evaluation rows."""
    model: bytes
    """SHA-256 of the structures of the model that the job starts from; empty for none."""
    certificate: bytes
    signature: bytes
    """``certificate`` and ``signature``: empty where the federation runs without identities."""
    edition: int
    """What it knows of vertical jobs, see :data:`~.meeting.EDITION`."""
    kem_key: bytes = b""
    kem_signature: bytes = b""
    """``kem_key`` and ``kem_signature``: ML-KEM-768, 1,184 bytes, and a signature that covers it;
    empty from a party without."""


RelayPiece = SealedPiece | CiphertextPiece | PartyKeys


@dataclass(frozen=True, slots=True)
class TableScore:
    """A metric over a set of rows."""

    rows: RowSet
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class PassNote:
    """What the coordinator may read of a pass."""

    more: bool = False
    """Whether another pass follows."""
    then: StepName | None = None
    """The next step; from the active party, and in replies."""
    refusal: str = ""
    """Why a party ends the job; shown to operators."""
    scores: tuple[TableScore, ...] = ()
    """Of a round, from the active party."""
    best_round: int | None = None
    """From the active party at the end of a round."""


@dataclass(frozen=True, slots=True)
class RelayPass:
    """One pass of an exchange between parties."""

    pieces: tuple[RelayPiece, ...] = ()
    note: PassNote = PassNote()


# --- contents of boxes ---


@dataclass(frozen=True, slots=True)
class DigestKey:
    """The key under which parties digest their row ids; 32 bytes."""

    key: bytes


@dataclass(frozen=True, slots=True)
class RowDigest:
    """The digest of a party's row ids; empty where ids are missing or repeated."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class BlindedSet:
    """A set of private set intersection; ``owner`` is the party whose ids these are."""

    kind: PsiKind
    owner: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class BlindedSets:
    """The sets that one party sends another in one exchange."""

    sets: tuple[BlindedSet, ...]


@dataclass(frozen=True, slots=True)
class TreeGradients:
    """The rows of a tree's ciphertexts."""

    sampled: bytes
    """A bit a row."""
    layout: PairLayout
    """How a row's gradients are stored in a plaintext."""


@dataclass(frozen=True, slots=True)
class CandidateCount:
    """How many candidates a passive party has for every node of a tree."""

    n_candidates: int
    no_more: bytes = b""
    no_less: bytes = b""
    """``no_more`` and ``no_less``: a bit a candidate, where the job constrains features of the
    sender: whether its sums' side must weigh no more, or no less, than the other one."""
    groups: bytes = b""
    """A bit a candidate, for each of the job's interaction constraints that names features of the
    sender, in the job's order: whether it is of one of these."""
    chains: tuple[int, ...] = ()
    missing: bytes = b""
    """Tuple of int, bytes. ``chains`` and ``missing``: where categories are divided into sets: how
    many candidates each column of them has (they are the first, running sums along the categories);
    a bit a column, whether values miss."""


Sources = NDArray[np.int16] | NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class CandidateSums:
    """What a passive party says of its ciphertext sums, candidates in its secret order."""

    allowed: bytes
    """A bit a candidate: of the requested nodes and their siblings, ascending."""
    sources: Annotated[Sources, Elements("<i4", 2, also=("<i2",))]
    """Of shape (n_nodes, n_candidates), int16 or int32. Which of a requested node's ciphertext sums
    is the candidate's own, :data:`NO_ROWS` or :data:`ALL_ROWS`; as wide as :func:`source_bytes`
    says."""


@dataclass(frozen=True, slots=True)
class CategorySet:
    """A division of a column of categories."""

    chain: int
    """Which column, as in :attr:`CandidateCount.chains`."""
    right: tuple[int, ...]
    """Candidates: categories between one of them and the candidate before it go right."""
    rest_right: bool
    default_left: bool
    """``rest_right`` and ``default_left``: whether categories after the last candidate do; and
    whether missing values, where they are not among these, go left."""


@dataclass(frozen=True, slots=True)
class NodeDivision:
    """A node that is divided."""

    node: int
    owner: int
    """Who divides it: 0 the active party, k the k-th passive one."""
    tied: tuple[int, ...] = ()
    """To the owner: its candidates with the greatest gain."""
    sets: tuple[CategorySet, ...] = ()
    """To the owner: divisions of categories with this gain."""


@dataclass(frozen=True, slots=True)
class LevelDivisions:
    """Nodes that are divided at a time."""

    divisions: tuple[NodeDivision, ...]
    """In the order in which their children are numbered."""
    left: bytes
    """A bit a row of the active party's nodes, in this order: whether it goes left."""


@dataclass(frozen=True, slots=True)
class LeftRows:
    """Rows that a passive party's divisions send left."""

    left: bytes
    """A bit a row of the sender's nodes, in the order of :class:`LevelDivisions`."""
    features: tuple[int, ...] = ()
    """To the active party: for each of these nodes the number under which the sender keeps its
    feature anonymous."""
    picked: tuple[int, ...] = ()
    """To the active party, where the job constrains features of the sender at all: which division
    that ties it took, as a position in :attr:`NodeDivision.tied` and then in ``sets``."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """The model after a round: digest of its structures, all trees, trees up to the best round."""

    digest: bytes
    n_trees: int
    n_used: int


@dataclass(frozen=True, slots=True)
class RowsAtNodes:
    """Rows that reached nodes of the receiver."""

    trees: Int32s
    nodes: Int32s
    counts: Int32s
    """Of shape (n_nodes,), int32. ``trees``, ``nodes`` and ``counts``: tree, node in the tree, and
    how many rows are there."""
    rows: Int32s
    """Of shape (n_rows,), int32. Node by node."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree without its divisions."""

    left: tuple[int, ...]
    """Left child by node, -1 at leaves; empty for the tree before, with another output."""
    output: int
    """Output that the tree adds to."""


@dataclass(frozen=True, slots=True)
class TreeShapes:
    """The trees that are scored."""

    trees: tuple[TreeShape, ...]


# --- steps ---

RelayStep = Step[RelayPass, RelayPass]


def _step(name: StepName, call: Call, discloses: Discloses, reveals: str) -> RelayStep:
    return Step(name.value, call, RelayPass, RelayPass, reveals, discloses)


KEYS = _step(
    StepName.KEYS, Call.KEYS, Discloses.KEYS,
    "public keys of this job, signed by this silo; whether it has evaluation rows",
)  # fmt: skip
IDENTIFIERS = _step(
    StepName.IDENTIFIERS, Call.IDENTIFIERS, Discloses.ENCRYPTED,
    "to other parties, sealed: blinded ids, from which they learn the number of this party's ids "
    "and which of their own are common to all; or a keyed digest of all ids",
)  # fmt: skip
GRADIENTS = _step(
    StepName.GRADIENTS, Call.GRADIENTS, Discloses.ENCRYPTED,
    "active party: encrypted gradients; sealed, which rows they belong to",
)  # fmt: skip
HISTOGRAMS = _step(
    StepName.HISTOGRAMS, Call.HISTOGRAMS, Discloses.ENCRYPTED,
    "passive party: encrypted sums of gradients for every way in which it could divide a node, "
    "in secret order; which of them it rules out",
)  # fmt: skip
SPLITS = _step(
    StepName.SPLITS, Call.SPLITS, Discloses.ENCRYPTED,
    "active party, sealed: which nodes are divided by whom, and the rows that its own divisions "
    "send left",
)  # fmt: skip
BITMAPS = _step(
    StepName.BITMAPS, Call.SPLITS, Discloses.ENCRYPTED,
    "passive party, sealed: the rows that its chosen divisions send left",
)  # fmt: skip
SCORES = _step(
    StepName.SCORES, Call.SCORES, Discloses.ENCRYPTED,
    "active party: whether the job goes on, and which round is the best; sealed, the digest of the "
    "trees",
)  # fmt: skip
TOLD_SCORES = replace(
    SCORES, reveals="active party: scores of the round, four digits; sealed, the digest of the "
    "trees", discloses=Discloses.SCORES,
)  # fmt: skip
"""The same step of an active party whose policy lets the scores leave."""
MARGINS = _step(
    StepName.MARGINS, Call.SCORES, Discloses.ENCRYPTED,
    "to other parties, sealed: which rows reached which node of theirs",
)  # fmt: skip
LEAVES = _step(
    StepName.LEAVES, Call.GRADIENTS, Discloses.ENCRYPTED,
    "active party: encrypted leaf values of every row; passive party: encrypted sums of those "
    "that its own features allow",
)  # fmt: skip
IN_CLEAR = {
    step.name: replace(
        step,
        reveals=step.reveals.replace("encrypted", "readable"),
        discloses=Discloses.COUNTS,
    )
    for step in (GRADIENTS, HISTOGRAMS, LEAVES)
}
"""The steps of a job without encryption that differ."""
STEPS = {
    StepName(step.name): step
    for step in (
        KEYS, IDENTIFIERS, GRADIENTS, HISTOGRAMS, SPLITS, BITMAPS, SCORES, MARGINS, LEAVES,
    )
}  # fmt: skip
