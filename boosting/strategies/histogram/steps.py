"""What silos and coordinator exchange: payloads, and the steps that carry them, in their order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

import numpy as np

from hedgerow.boosting.dataset import Labels
from hedgerow.boosting.engine.summaries import QuantileSummaries
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Call, Discloses, Receipt, Silo, Step
from hedgerow.boosting.payloads import LATER, Bits, Bytes1, Float32s, Int32s, Int64s, UInt16s
from hedgerow.boosting.sums.steps import SumSteps, SumTotal, check_exponent, sum_steps
from hedgerow.crypto.masking.fixed_point import pack, residue_dtype, unpack
from hedgerow.crypto.masking.masks import Residues

Reply = TypeVar("Reply")

_REVEALS = """\
To the coordinator, with secure sums: sums over the silos that take part, never one silo's share of
them; rows with weights count by them in sums of gradients, labels and metrics. They are the number
of rows, and the power of two above the largest row weight of any silo; where the loss has no bound,
every 16 rounds (4 with few bits) and when silos enter, the powers of two above the largest gradient
and hessian of any silo (each round where scripts or a loss of the job's own give gradients, with
few bits of an exponential loss or of a sample by GOSS or MVS, and with mvs_lambda = 0), never which
silo's they are; sums of each label where the objective
starts from its mean, with class_start the rows of each class, and
the numbers of labels below some values where from their median; with
binning = "recursive" the numbers of rows below some values of each column. {recursive: Which values
follows from these numbers: a coordinator that makes some up (which silos find out unless it is
blind or one of them colludes) chooses among values of 16 significant bits (20 where it says that
half of the rows are close together), and reads at most 8 max_bin + 1088 numbers of a column (more
with a small binning_error), over all attempts twice as many; of few rows it can so find the values,
never whose they are.} They are of each tree the totals and the gradient histograms of one child of
each split (the other follows); for each feature whether any silo has missing values, and for each
level whether any silo's gradients could overflow the widths that were guessed or any silo has
missing values that the reply denies, never which silo or how many; metric sums, of what scripts
score by functions of their own the mean over silos by the weight of their rows{global: ; with
sampling_scope = "global" the number of rows by size of their gradients}. {quantile: With
reg:absoluteerror and reg:quantileerror they are the numbers of labels below some values, as of a
column with 1024 bins and of any float32 value, and of each tree the numbers of rows of each leaf
whose label exceeds the margin by less than some residuals: powers of two of one step, then 31
between the two that have the quantile where these have min_cell rows. Labels of a cell between two
of the values found, which min_cell rows of all silos or more have, are then one value to all sums
but those of metrics: no combination of these, over all rounds, tells one label of a cell from
another. Which cell a row's label is in they can tell, of a bin or leaf of few rows that is known to
have the row; a coordinator with one colluding silo makes cells narrower, as above.} {cox: With
survival:cox they are the numbers of events below some times, as of a column with 256 bins and of
any float32 value, and in each round of each cell of times its events, its rows and the sum of
exp(margin) of these. A cell has min_cell events of all silos or more; rows of it whose events were
seen, and so rows of it that are censored, may exchange their times, and no sum but those of metrics
changes. Margins are sums of leaf values, so that a cell's sums over the rounds tell how many of its
rows reach which leaves, and in small cells which leaves of all trees a row reaches together: who
knows the leaves of a row may learn its cell.} {interval: With interval they are, once and after the
last round, how many rows held back have errors below some values, of quantiles how far labels are
outside of them.} Of each silo, without masks: its
name and when it takes part, its exact number of rows, its column names, category and class
lists{summary: ; with binning = "summary" quantile summaries of every feature, which are values of
its rows, and of a silo with fewer rows than points all of them; over all silos the rows below each
cut point, which the coordinator chooses once a job}. To every silo: the trees, the cut points and
the numbers of rows that they follow from, and so the numbers that cells of labels and leaves that
are quantiles follow from, the sums by cell of times, the counts of errors, with sampling_scope =
"global" the number of rows and the sum of their scores by size of their gradients, the union of all
silos' lists, the total number of rows and the powers of two{proportional: ; with bins_policy =
"proportional" the row count of the largest silo}; unless the coordinator is blind, of the nodes
that are summed next how many bits their sums need (powers of two above the greatest sum of a node,
or of each feature of it, in its parent), with filled_bins = true which bins are empty in the parent
over all silos, which features are missing nowhere with their most frequent bin, and whether a level
was summed a second time. The model file contains the united lists. Histograms have no counts, but
without sampling the hessians of squared error are counts, and those of other losses are the same
for equal margins, or tell of labels, too (gamma, Tweedie, squared logarithms, times of survival).
{ranking: Gradients of a ranking follow from the labels and the order of all rows of a query, which
other rows' sums tell of, too, and its scores from how many queries there are in all.} {loss: A
loss of the job's own may have no gradient but of rows with some label, or of some leaf, which these
sums then count.} A deep node may have few rows; min_child_weight and max_depth limit that.
{secure: Sums are over unions of whole groups of three to five silos, which are fixed for the job,
so that no combination of them, over all rounds and attempts, is finer than a group; a lost silo
takes its group out. Fewer than six silos are one group.}
{close: Where the job and all policies allow close sets (max_close_sums), the
difference of two rounds' sums estimates the sums of the silos that only one of them has, by bin
exactly where hessians are counts, or where the coordinator has gradients clipped so that trees
change nothing.} Which rows a silo draws, and how it rounds, follows from a secret of the silo.
{secure: With secure sums every silo also learns the sums of all nodes of the trees, which it checks
by a key that the silos share, and derives leaf values from them; it checks the totals by which
rows, start score, cut points and largest gradients are agreed on in the same way. A coordinator
with one colluding silo knows that key and can make them up.} Splits are the coordinator's word,
alike for all silos; one is checked only with the sum that it opens. {summary: With binning =
"summary" the cut points are its word, too, but for those that leave a bin with fewer than min_cell
rows: silos find out and leave these out.} A silo that is late, returns, or was not drawn for a
round takes trees from the coordinator unchecked. When silos enter, they and the coordinator learn
how many of them have checked the trees so far, before any other sum; if nobody has, none follows.
{drawn: With silos_per_round a cohort of silos that were all not drawn before takes a round's leaf
values on trust.} The leaf value of a tree that is a root alone, after a restart, nobody has
checked. {drawn: With silos_per_round a round's sums are over groups that the seed draws; metric
sums are over all. A silo that is not drawn sends nothing of its rows in that round and learns the
trees. Fewer than six silos are drawn one by one, which needs close sets.} If the coordinator
colludes with all silos but one, they can compute that silo's sums; with fewer they learn the sum of
the rest. {clear: With secure = false the coordinator sees each silo's histograms: labels of rows in
rare bins can be read off.} {blind: With blind_coordinator = true the coordinator sees neither sums
nor trees nor cut points, only the number of bisections; every silo sees the sums.}
""".replace("\n", " ").strip()
"""In braces what only some jobs reveal."""


def reveals(applies: Mapping[str, bool] | None = None) -> str:
    """Return what each party learns beyond the result: of all jobs, or of those with some parts."""

    def part(found: re.Match[str]) -> str:
        return found[2] if applies is None or applies[found[1]] else ""

    return " ".join(re.sub(r"\{(\w+): ([^{}]*)\}", part, _REVEALS).split())


REVEALS = reveals()


class RowsScored(Enum):
    """Rows that silos score each round by secure sums."""

    NONE = "none"
    TRAIN = "train"
    VALID = "valid"
    BOTH = "both"

    @property
    def sets(self) -> tuple[str, ...]:
        """Names of the scored sets in reports, in the order of their sums."""
        return () if self.value == "none" else _SETS if self.value == "both" else (self.value,)


_SETS = ("train", "valid")


class AfterRound(Enum):
    """What follows a round."""

    ROUND = "the next round"
    ENTRY = "silos enter, with fresh keys, before the next round"
    END = "the end of the job"


# --- entering ---


@dataclass(frozen=True, slots=True)
class EntryRequest:
    """A silo asks when it may enter."""


@dataclass(frozen=True, slots=True)
class EntryRound:
    """The round at whose start the silo may enter; ``None`` when the job takes no more silos."""

    round: int | None


@dataclass(frozen=True, slots=True)
class KnownTrees:
    """The number of rounds whose trees the silo has."""

    rounds: int


@dataclass(frozen=True, slots=True)
class CutPoints:
    """Inner thresholds of all numeric features, one after another."""

    sizes: Int64s
    """Of shape (n_numeric,), int64. Thresholds of each numeric feature, in the schema's order."""
    values: Float32s
    """Of shape (n_thresholds,), float32. Strictly increasing within a feature."""


@dataclass(frozen=True, slots=True)
class LabelCells:
    """Values in place of labels, each of which ``min_cell`` rows of all silos or more share.

    All that a job of a median or quantile sums in trees is a function of these values, so no
    combination of its sums, over all rounds, tells a label from the others of its cell.
    """

    thresholds: Float32s
    """Of shape (n_cells - 1,), float32. Strictly increasing; a label equal to one is above it."""
    values: Float32s
    """Of shape (n_cells,), float32. Not decreasing."""

    def __post_init__(self) -> None:
        n = self.thresholds.shape[0]
        if (
            self.values.shape[0] != n + 1
            or not np.isfinite(self.values).all()
            or not np.isfinite(self.thresholds).all()
            or np.any(np.diff(self.thresholds) <= 0)
            or np.any(np.diff(self.values) < 0)
        ):
            raise OfferRejected(
                "label cells: expected increasing thresholds and one finite value more, received "
                f"{n} thresholds and {self.values.shape[0]} values"
            )

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return int(self.values.shape[0])

    def of(self, labels: Labels) -> Float32s:
        """Return the value in place of each label."""
        cell = np.searchsorted(self.thresholds, labels.astype(np.float32), side="right")
        return self.values[cell]


@dataclass(frozen=True, slots=True)
class OpeningTerms:
    """What the silos agreed on before the first round."""

    n_rows: int
    """Training rows of all silos."""
    weight_exponent: int
    """Power of two above the largest row weight."""
    base_score: float
    """Where margins start, on the label's scale; of several labels that of the first."""
    cuts: CutPoints
    more_scores: tuple[float, ...] = field(default=(), metadata={LATER: True})
    """Of the labels after the first."""
    labels: LabelCells | None = field(default=None, metadata={LATER: True})
    """With an objective of a median or quantile."""

    def __post_init__(self) -> None:
        check_exponent(self.weight_exponent)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """All that a silo needs to enter: the trees so far, as ``model.ubj``, and the terms."""

    model: Bytes1
    terms: OpeningTerms


@dataclass(frozen=True, slots=True)
class RoundEntry:
    """Where a silo enters."""

    scored: RowsScored
    round: int | None
    """The round that follows; ``None`` when the job is over."""
    state: TrainingState | None
    """For a silo that lacks trees; ``None`` for the others, and before the first round."""
    largest_silo: int | None = None
    """Rows of the largest silo, where the bins policy needs them."""


# --- the opening ---


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows of all silos that a search asked about: below keys, or by size of their gradients.

    All parties run the same search (:mod:`hedgerow.boosting.engine.bisection`,
    :class:`~hedgerow.boosting.engine.sampling.ThresholdSearch`), so a reply says neither what is
    asked next nor what was found. Where silos check it, it begins with the sum of their words.
    """

    rows: Int64s
    """Of shape (n_counts,), int64."""


@dataclass(frozen=True, slots=True)
class ProposalCount:
    """How many values the silo counts below next; 0 at the end."""

    n: int


# --- a round ---


@dataclass(frozen=True, slots=True)
class CategorySets:
    """Codes that go right at the categorical splits of a tree's level."""

    split: Int32s
    """Of shape (n,), int32. Positions in :class:`TreeSplits`, ascending."""
    size: Int32s
    """Of shape (n,), int32. Bytes of each set."""
    sets: Bytes1
    """Of shape (sum of sizes,), uint8. Bit ``c % 8`` of byte ``c // 8`` is set where code ``c``
    goes right."""


@dataclass(frozen=True, slots=True)
class NodeRings:
    """How the histograms that a tree requests next travel (:mod:`.rings`)."""

    grad: Bytes1
    hess: Bytes1
    """Of shape (n_requested,) or (n_requested * n_used,), uint8. ``grad`` and ``hess``: bits of
    sums of g and of h, one for a node or for each feature of each node."""
    filled: Bytes1
    """Of shape (n_bytes,), uint8. A bit for each bin of the nodes' paths: not set for bins that are
    left out since the parent has them empty. Without bytes none is left out."""
    derived: UInt16s
    """Of shape (n_used,), uint16. Of each feature of the tree without missing values in any silo
    the bin with the greatest hessian in the root, which is not sent where the path has it; 65535
    for other features."""


@dataclass(frozen=True, slots=True)
class TreeSplits:
    """One tree's splits of a level, in the order in which their children are numbered.

    Nodes count from 0, the root; each split appends its left and then its right child.
    """

    node: Int32s
    feature: Int32s
    """Of shape (n_splits,), int32."""
    bin: Int32s
    """Of shape (n_splits,), int32. Last bin that goes left, -1 when no present value does; 0 at a
    categorical split."""
    default_left: Bits
    """Of shape (n_splits,), bool. Whether missing values go left."""
    categories: CategorySets | None
    request: Int32s
    """Of shape (n_requested,), int32. Nodes whose histograms are summed next; without any the tree
    is grown."""
    rings: NodeRings | None = None
    """How these travel; ``None`` with a blind coordinator, and where the tree is grown."""


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """What follows the round."""

    after: AfterRound


@dataclass(frozen=True, slots=True)
class NodeTotals:
    """Sums of nodes over all silos, and what silos check them by (:mod:`crypto.masking.totals`)."""

    sums: Int64s
    """Of shape (n,), int64. Tree by tree, node by node, g and h of each output."""
    word: Int64s
    """Of shape (N_LIMBS,), int64. The sum of the silos' words."""


@dataclass(frozen=True, slots=True)
class ClosedTrees:
    """The end of a round's trees."""

    values: Float32s
    """Of shape (n_values,), float32. Leaf values, tree by tree, leaves ascending, outputs adjacent.
    Without any, silos derive them from node totals that they have checked."""
    end: RoundEnd | None = None
    """``None`` where the round is scored: the scores' reply has it then."""
    totals: NodeTotals | None = None
    """Of the left children of pairs that no histogram was asked of, and after those of all trees
    the lossless sums of all leaves where these are renewed."""
    cut: bool = False
    """Whether divisions are taken back of whose children no sum has had one: a silo was lost."""


@dataclass(frozen=True, slots=True)
class LevelDecision:
    """Splits of each tree; leaf values when the trees are closed without lossless leaf sums.

    Where a width was ``overflowed`` there is neither: the level is summed again in a second pass.
    ``totals`` are of the nodes whose histograms were summed, where silos check them.
    """

    trees: tuple[TreeSplits, ...]
    closed: ClosedTrees | None
    overflowed: bool = False
    totals: NodeTotals | None = None

    def __post_init__(self) -> None:
        if self.overflowed and (self.trees or self.closed is not None or self.totals is not None):
            raise OfferRejected("level: expected nothing beside an overflow, received a decision")


@dataclass(frozen=True, slots=True)
class GrownTrees:
    """A round's trees for a silo that was not drawn for it: the levels that the others decided."""

    levels: tuple[LevelDecision, ...]
    closed: ClosedTrees


@dataclass(frozen=True, slots=True)
class RelayedTotal:
    """A total that a blind coordinator passes on, for the silos to open and decide from."""

    residues: Bytes1
    """Of shape (n_values * ring_bits / 8,), uint8. Little-endian, under the group masks; empty for
    an abandoned sum."""
    present: tuple[Silo, ...]
    """Silos whose vectors are in it; empty for an abandoned sum."""
    end: RoundEnd | None = None
    """With the last total of a round."""

    @classmethod
    def of(
        cls,
        total: Residues | None,
        ring_bits: int,
        present: tuple[Silo, ...],
        end: RoundEnd | None = None,
    ) -> RelayedTotal:
        """Return what silos receive of a sum; ``total`` is ``None`` for an abandoned one."""
        if total is None:
            return cls(np.empty(0, np.uint8), (), end)
        return cls(np.frombuffer(pack(total, ring_bits), np.uint8), present, end)

    def total(self, ring_bits: int) -> SumTotal:
        """Return the total, still under the group masks."""
        n_values, over = divmod(self.residues.shape[0] * 8, ring_bits)
        if over:
            raise OfferRejected(
                f"residues: expected {ring_bits // 8} bytes each, received "
                f"{self.residues.shape[0]} bytes"
            )
        if not self.present:
            return SumTotal(np.empty(0, residue_dtype(ring_bits)), ring_bits, ())
        return SumTotal(unpack([self.residues.data], n_values, ring_bits), ring_bits, self.present)


@dataclass(frozen=True, slots=True)
class DecidedSum(Generic[Reply]):
    """A sum that its reader decides from: the coordinator, or every silo if that is blind."""

    decided: SumSteps[Reply]
    """Answered with the decision."""
    relayed: SumSteps[RelayedTotal]
    """Answered with the masked total."""


def _decided_sum(name: str, call: Call, reply: type[Reply], what: str) -> DecidedSum[Reply]:
    return DecidedSum(
        sum_steps(name, call, call, reply, what, Discloses.COUNTS),
        sum_steps(name, call, call, RelayedTotal, what, Discloses.COUNTS),
    )


SYNC = Step("sync", Call.SKETCHES, EntryRequest, EntryRound, "nothing", Discloses.NOTHING)
ENTER = Step(
    "enter", Call.SKETCHES, KnownTrees, RoundEntry, "whether it has the trees so far",
    Discloses.NOTHING,
)  # fmt: skip
MEDIAN = _decided_sum("median", Call.SUMS, RowCounts, "labels below proposed values")
CUTS = Step(
    "cuts", Call.SKETCHES, QuantileSummaries, CutPoints, "quantile summaries: values of its rows",
    Discloses.QUANTILES,
)  # fmt: skip
PROPOSALS = Step(
    "proposals", Call.SKETCHES, ProposalCount, Receipt, "how many values it counts below",
    Discloses.NOTHING,
)  # fmt: skip
COUNTS = _decided_sum("counts", Call.SKETCHES, RowCounts, "rows below proposed values")
THRESHOLDS = _decided_sum("thresholds", Call.SUMS, RowCounts, "rows by size of their gradients")
HISTOGRAMS = _decided_sum(
    "histograms", Call.HISTOGRAMS, LevelDecision, "gradient sums by node, feature, bin"
)
LEAVES = _decided_sum(
    "leaves", Call.HISTOGRAMS, ClosedTrees, "gradient sums by leaf, what checks the last nodes"
)
QUANTILES = _decided_sum(
    "leaf-quantiles", Call.HISTOGRAMS, RowCounts, "rows by leaf below proposed residuals"
)
GROWN = Step(
    "grown", Call.HISTOGRAMS, KnownTrees, GrownTrees, "whether it has the trees so far",
    Discloses.NOTHING,
)  # fmt: skip
WITNESS_PASS, ROWS_PASS, SAMPLE_PASS = 1, 2, 3
"""Passes of ``sum`` that find a round's largest gradients, and who has checked the trees before it;
lower ones are the opening's."""
ERRORS = _decided_sum("errors", Call.SUMS, RowCounts, "rows held back with errors below values")
RISK = sum_steps(
    "risk-sets", Call.SUMS, Call.SUMS, SumTotal,
    "events, rows and exponentials of margins, by cell of times", Discloses.COUNTS,
)  # fmt: skip
SCORES = sum_steps("scores-sum", Call.SUMS, Call.SUMS, RoundEnd, "metric sums", Discloses.SCORES)
