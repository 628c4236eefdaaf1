"""FedXGBllr: every silo's trees once, then what combines them is learnt over all silos' rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Schema, Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.ports import Artefact, Forecast, Safeguards
from hedgerow.boosting.strategies.fedxgbllr.combiners import (
    Combiner,
    HeadCombiner,
    LeafCombiner,
    RateCombiner,
)
from hedgerow.boosting.strategies.fedxgbllr.heads import Head, HeadKind
from hedgerow.boosting.strategies.fedxgbllr.learning_rates import Schedule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hedgerow.boosting.exchange import Hub, Link, Silo
    from hedgerow.boosting.ports import CoordinatorStart, JobParameters, RoundResult, SiloStart
    from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafTable
    from hedgerow.crypto.vault import Vault

HEADS = {kind.value: kind for kind in HeadKind}
COMBINERS = (*HEADS, "mean", "ridge", "logit_ridge", "leaves")
OPTIMISERS = ("fedavg", "fedavgm", "fedadam")
WEIGHT_BITS = (32, 8, 4)

OBJECTIVES = {
    Task.BINARY: ("binary:logistic",),
    Task.MULTICLASS: ("multi:softprob",),
    Task.REGRESSION: ("reg:squarederror", "reg:pseudohubererror"),
}

RIDGE_PENALTIES = (1.0, 10.0, 100.0, 1000.0)
LEAF_PENALTIES = (30.0, 100.0, 300.0, 1000.0, 3000.0)
_DEFAULT_PENALTY = {"ridge": 100.0, "logit_ridge": 10.0, "leaves": 300.0}
_NEWTON_STEPS = 2

_REVEALS = """\
To the coordinator and to every silo: the trees of every silo. Thresholds are values of training
rows (with shared_cuts, of merged summaries), leaf values are statistics of small groups of rows;
scrub = stats leaves out gains, row counts (hessian sums) and inner weights. Publishing trees tells
more than publishing histograms of the same depth under secure sums would.
To the coordinator: each silo's row count, and in each round its vector: network weights after
training on its rows (cnn, conv3, dense), its normal equations over tree outputs (ridge,
logit_ridge), or its loss gradient by leaf (leaves; the first round also counts rows by leaf for
regression). With center_target or scale_target also the sum of its labels and of their squares;
with validation rows the sums of its metrics; with shared_cuts, quantile summaries, which are
values of its rows.
To every silo: the combined state after each round.
With secure = true the coordinator sees only sums over silos of those vectors, label sums and
metric sums, and of each silo the power of two above its largest entry; trees, row counts and
summaries stay as said. The coordinator with all silos but one learns that silo's vectors.
"""


@dataclass(frozen=True, slots=True)
class FedXGBllr:
    """Trees once, then learning rates: FedXGBllr with exact linear combiners beside its network.

    Round 0: each silo trains M = trees / silos boosting steps on its rows from a base score that
    all share, and all ensembles are given to all. Rounds 1 to R: what combines the trees' outputs
    is learnt on all silos' rows. Placing of steps:

    | step | RPC | round, level | silo offers | silo gets |
    |---|---|---|---|---|
    | ``base`` | ExchangeSums | 0 | count, sum, sum of squares of labels | mean and spread |
    | ``cuts`` | ExchangeSketches | 0 | quantile summaries (``shared_cuts``) | cut points |
    | ``trees`` | ExchangeTrees | 0 | its packed trees | the other silos' |
    | ``weights`` | ExchangeWeights | t | its network's weights and row count | their mean |
    | ``sums`` | ExchangeSums | t | normal equations, or loss gradient | the next point |
    | ``scores`` | ExchangeScores | t, 1 | metric sums on validation rows | what was chosen |
    | ``rates`` | ExchangeScores | last, 2 | mean derivative by each tree's output | – |
    | ``sync`` | ExchangeTrees | – | – | where the job is: all trees, the point |

    ``base`` is there for regression only, ``scores`` with ``validation`` only, ``rates`` with a
    network only. With ``secure`` each of ``base``, ``weights``, ``sums``, ``scores`` and ``rates``
    is the exchanges of :mod:`boosting.sums.floats`, and fresh keys are agreed on in each round.

    Round 0's score is that of the mean of the ensembles. A silo absent in a round is left out of
    that round's mean, and its trees stay. A silo absent in round 0 has no block: K is the number
    of ensembles received. A silo that comes (back) later synchronises, and trains on its rows from
    the next round on. A silo without rows sends no trees.

    Parameters
    ----------
    trees : int
        Boosting steps of all silos together, T; each silo makes T / K (at least one).
    rounds : int
        R. For ``leaves``, evaluations of the loss (30 come close to the minimum). ``ridge`` takes
        one round of them, ``logit_ridge`` two, ``mean`` none.
    epochs : int
        Local epochs a round, E. The paper's is 100, which over-fits; ten did better on all our
        sets (docs/results-fedxgbllr.md).
    batch_size : int
    combiner : str
        ``cnn``, its ablations ``conv3`` and ``dense``, ``mean``, ``ridge``, ``logit_ridge`` or
        ``leaves``; see :mod:`hedgerow.boosting.strategies.fedxgbllr.combiners`.
    channels : int
        Of the convolution.
    learning_rate, beta1, beta2 : float
        Adam's, in silos.
    proximal : float
        FedProx's μ.
    penalty : float or None
        Pull of ``ridge``, ``logit_ridge`` and ``leaves`` towards the mean of the ensembles. None:
        chosen on validation rows, or 100, 10 and 300 without them.
    validation : float
        Share of each silo's rows held out of trees and training, to choose the best round, the
        penalty and the epochs on.
    early_stopping_rounds : int
        Rounds without a better validation score that end the job; 0 is never.
    epoch_choices : tuple of int
        Epochs tried in the first round; the best on validation rows is kept.
    server_optimiser : str
        ``fedavg``, ``fedavgm`` or ``fedadam``.
    server_rate, server_momentum : float
        Its step and momentum.
    center_target, scale_target : bool
        Subtract the mean of all silos' labels, and divide by their spread (regression).
    secure : bool
        Mask what silos add; needs three silos.
    scrub : str
        ``stats`` leaves statistics of rows out of the trees that are sent, ``none`` nothing.
    share_penalties : bool
        Divide ``alpha`` and ``gamma`` of the booster by the number of silos. They are compared
        with sums over rows, of which a silo has only its share: as they stand, they prune the
        trees of small silos to stumps.
    shared_cuts : int
        Cut points a feature that all silos agree on before training; 0 is none.
    leaf_bits : int
        32 or 16 (float16 leaf values; with ``scrub = "stats"`` only).
    weight_bits : int
        32, or 8 or 4 for quantised differences of network weights.

    References
    ----------
    Ma, Qiu, Beutel, Lane, "Gradient-less federated gradient boosting trees with learnable learning
    rates", EuroMLSys 2023, algorithm 1. The combiners beside ``cnn`` are ours.
    """

    name: ClassVar[str] = "fedxgbllr"
    reveals: ClassVar[str] = _REVEALS

    trees: int = 500
    rounds: int = 10
    epochs: int = 10
    batch_size: int = 64
    combiner: str = "cnn"
    channels: int = 64
    learning_rate: float = 1e-3
    beta1: float = 0.5
    beta2: float = 0.999
    proximal: float = 0.0
    penalty: float | None = None
    validation: float = 0.0
    early_stopping_rounds: int = 0
    epoch_choices: tuple[int, ...] = ()
    server_optimiser: str = "fedavg"
    server_rate: float = 1.0
    server_momentum: float = 0.9
    center_target: bool = True
    scale_target: bool = False
    secure: bool = False
    scrub: str = "stats"
    share_penalties: bool = False
    shared_cuts: int = 0
    leaf_bits: int = 32
    weight_bits: int = 32

    @property
    def is_network(self) -> bool:
        """Whether a network is trained."""
        return self.combiner in HEADS

    @property
    def n_rounds(self) -> int:
        """Rounds after round 0, at most."""
        most = {"mean": 0, "ridge": 1, "logit_ridge": _NEWTON_STEPS}
        return min(self.rounds, most.get(self.combiner, self.rounds))

    @property
    def n_results(self) -> int:
        """Rounds that are reported, at most: round 0 and those after it."""
        return self.n_rounds + 1

    def steps_per_silo(self, n_silos: int) -> int:
        """Return M, the boosting steps of each silo of a roster."""
        return max(1, self.trees // n_silos)

    def silo_job(self, job: JobParameters, n_silos: int) -> JobParameters:
        """Return the job under which each silo of a roster grows its trees."""
        if not self.share_penalties:
            return job
        booster = job.booster
        return replace(
            job,
            booster=replace(booster, alpha=booster.alpha / n_silos, gamma=booster.gamma / n_silos),
        )

    def needs_label_sums(self, job: JobParameters) -> bool:
        """Whether silos add up their labels first."""
        if job.task is not Task.REGRESSION:
            return False
        return self.scale_target or (self.center_target and job.booster.base_score is None)

    def combine(
        self, table: LeafTable, task: Task, n_silos: int, n_outputs: int, seed: int
    ) -> Combiner:
        """Return the combiner of the trees of ``table``, equal parts of which each silo made."""
        if self.is_network:
            head = Head(
                HEADS[self.combiner], n_silos, table.n_trees // n_silos, n_outputs, self.channels
            )
            schedule = Schedule(
                self.epochs,
                self.batch_size,
                self.learning_rate,
                (self.beta1, self.beta2),
                self.proximal,
            )
            return HeadCombiner(
                head,
                task,
                self.rounds,
                schedule,
                seed,
                self.epoch_choices,
                self.server_optimiser,
                self.server_rate,
                self.server_momentum,
            )
        penalties = self.penalties
        if self.combiner == "leaves":
            return LeafCombiner(table, task, n_silos, n_outputs, self.n_rounds, penalties)
        return RateCombiner(table, task, n_silos, n_outputs, self.n_rounds, penalties)

    @property
    def penalties(self) -> tuple[float, ...]:
        """Penalties that are tried; one, without validation rows."""
        if self.penalty is not None:
            return (self.penalty,)
        if self.validation:
            return LEAF_PENALTIES if self.combiner == "leaves" else RIDGE_PENALTIES
        return (_DEFAULT_PENALTY.get(self.combiner, 0.0),)

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return self.trees

    def safeguards(self, job: JobParameters) -> Safeguards:
        """Return what a silo's policy asks about."""
        return Safeguards(job.booster.max_depth, secure=self.secure)

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` naming the parameter, what was expected and what came."""
        _expect("trees", self.trees, 1, 1_000_000)
        _expect("rounds", self.rounds, 1, 100_000)
        _expect("epochs", self.epochs, 1, 100_000)
        _expect("batch_size", self.batch_size, 1, 1 << 20)
        _expect("channels", self.channels, 1, 256)
        _expect("learning_rate", self.learning_rate, 1e-12, 1e3)
        _expect("beta1", self.beta1, 0.0, 1.0, open_above=True)
        _expect("beta2", self.beta2, 0.0, 1.0, open_above=True)
        _expect("proximal", self.proximal, 0.0, 1e9)
        _expect("validation", self.validation, 0.0, 0.5)
        _expect("early_stopping_rounds", self.early_stopping_rounds, 0, 100_000)
        _expect("server_rate", self.server_rate, 1e-12, 1e3)
        _expect("server_momentum", self.server_momentum, 0.0, 1.0, open_above=True)
        _expect("shared_cuts", self.shared_cuts, 0, 65_000)
        _choose("scrub", self.scrub, ("stats", "none"))
        _choose("combiner", self.combiner, COMBINERS)
        _choose("server_optimiser", self.server_optimiser, OPTIMISERS)
        _choose("leaf_bits", self.leaf_bits, (32, 16))
        _choose("weight_bits", self.weight_bits, WEIGHT_BITS)
        if self.penalty is not None:
            _expect("penalty", self.penalty, 1e-9, 1e12)
        for number in self.epoch_choices:
            _expect("epoch_choices", number, 1, 100_000)
        self._validate_together(job)
        metrics.check(job.metrics, job.task)

    def _validate_together(self, job: JobParameters) -> None:
        """Check parameters against each other and the job."""
        if job.objective not in OBJECTIVES[job.task]:
            raise InvalidJob(
                f"[fedxgbllr] objective: expected one of {', '.join(OBJECTIVES[job.task])} "
                f"for a {job.task.value} job, came {job.objective}"
            )
        if self.combiner == "ridge" and job.task is not Task.REGRESSION:
            raise InvalidJob("[fedxgbllr] combiner 'ridge' is for regression; use 'logit_ridge'")
        if self.combiner == "logit_ridge" and job.task is Task.REGRESSION:
            raise InvalidJob("[fedxgbllr] combiner 'logit_ridge' is for classes; use 'ridge'")
        if (self.early_stopping_rounds or self.epoch_choices) and not self.validation:
            raise InvalidJob(
                "[fedxgbllr] early_stopping_rounds and epoch_choices choose on validation rows: "
                "expected validation > 0, came 0"
            )
        if self.epoch_choices and not self.is_network:
            raise InvalidJob(f"[fedxgbllr] epoch_choices: combiner {self.combiner!r} has no epochs")
        if self.weight_bits != 32 and (not self.is_network or self.secure):
            raise InvalidJob(
                "[fedxgbllr] weight_bits: only a network's weights are quantised, and not under "
                "secure sums, whose integers are masked as they are"
            )
        if self.leaf_bits != 32 and self.scrub != "stats":
            raise InvalidJob(
                "[fedxgbllr] leaf_bits: rounded leaves take more bytes, not fewer, beside the "
                "statistics that are told from them; use scrub 'stats'"
            )
        if self.secure and job.min_silos < 3:
            raise InvalidJob("[fedxgbllr] secure: expected min_silos of 3 or more")
        if self.scale_target and job.task is not Task.REGRESSION:
            raise InvalidJob("[fedxgbllr] scale_target is for regression")
        base = job.booster.base_score
        if base is not None and job.task is not Task.REGRESSION and base != 0.5:
            raise InvalidJob(f"[fedxgbllr] base_score: expected 0.5 for classes, came {base}")

    def coordinate(self, hub: Hub, start: CoordinatorStart) -> AsyncIterator[RoundResult]:
        """Run the coordinator half."""
        from hedgerow.boosting.strategies.fedxgbllr.halves import coordinate

        return coordinate(self, hub, start)

    def participate(self, link: Link, vault: Vault | None, start: SiloStart) -> Artefact | None:
        """Run the silo half; nothing stays in the silo."""
        from hedgerow.boosting.strategies.fedxgbllr.halves import participate

        participate(self, link, vault, start)
        return None

    def artefact(self, job: JobParameters, schema: Schema, checkpoint: bytes) -> Artefact:
        """Return the ensemble, its head and a manifest; a stock model too where it is linear."""
        from hedgerow.boosting.strategies.fedxgbllr.record import artefact_of

        return artefact_of(self, job, schema, checkpoint)

    @staticmethod
    def margins(files: Mapping[str, bytes], dataset: Dataset) -> NDArray[np.float64]:
        """Return the margins of rows, coded by the job's schema, under an artefact's files."""
        from hedgerow.boosting.strategies.fedxgbllr.stacked_model import margins_of_files

        return margins_of_files(files, dataset)

    def forecast(
        self, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
    ) -> Forecast:
        """Return bytes by formula: exact for networks, from tree sizes for the trees."""
        from hedgerow.boosting.strategies.fedxgbllr.forecast import forecast

        return forecast(self, job, schema, n_samples)


def _expect(
    name: str, value: float, least: float, largest: float, *, open_above: bool = False
) -> None:
    if not least <= value <= largest or (open_above and value == largest):
        end = "below" if open_above else "to"
        raise InvalidJob(f"[fedxgbllr] {name}: expected {least} {end} {largest}, came {value}")


def _choose(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        choices = ", ".join(str(choice) for choice in known)
        raise InvalidJob(f"[fedxgbllr] {name}: expected one of {choices}, came {value}")
