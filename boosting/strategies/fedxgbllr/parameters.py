"""Parameters of FedXGBllr."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from hedgerow.boosting import metrics
from hedgerow.boosting.checks import one_of, only_with, within
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.objective import check_parameters, rows_of_leaf
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.ports import Safeguards

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

NETWORKS = ("cnn", "conv3", "dense")
"""Combiners that are networks; in these a tree has no rate of its own."""
COMBINERS = (*NETWORKS, "mean", "ridge", "logit_ridge", "leaves")
OPTIMISERS = ("fedavg", "fedavgm", "fedadam")
LEAF_BITS = (32, 16)
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
_TABLE = "fedxgbllr"


@dataclass(frozen=True, slots=True)
class FedXGBllr:
    """Parameters of the job's table ``fedxgbllr``; the package describes the protocol.

    Parameters
    ----------
    trees : int
        Boosting steps of all silos together, T. Each of K silos makes T / K, at least one.
    rounds : int
        R. For ``leaves``, evaluations of the loss (30 come close to the minimum). ``ridge`` takes
        one round of them, ``logit_ridge`` two, ``mean`` none.
    epochs : int
        Local epochs a round, E. The paper's is 100, which over-fits; ten did better on all our
        sets (docs/results-fedxgbllr.md).
    batch_size : int
        Rows of a mini-batch.
    combiner : str
        ``cnn``, its ablations ``conv3`` and ``dense``, ``mean``, ``ridge``, ``logit_ridge`` or
        ``leaves``; see :mod:`hedgerow.boosting.strategies.fedxgbllr.combiners`.
    channels : int
        Channels of the convolution.
    learning_rate, beta1, beta2 : float
        Of Adam, in the silos.
    proximal : float
        FedProx's μ.
    penalty : float or None
        Pull of ``ridge``, ``logit_ridge`` and ``leaves`` towards the mean of the ensembles. None:
        chosen on validation rows, or 100, 10 and 300 without them.
    validation : float
        Share of each silo's rows that neither trees nor combiners are trained on. The best round,
        penalty and number of epochs are chosen on them.
    early_stopping_rounds : int
        Rounds without a better validation score after which the job ends; 0 is never.
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
        ``stats`` removes statistics of rows from the trees that are sent, ``none`` nothing.
    share_penalties : bool
        Divide ``alpha`` and ``gamma`` of the booster by the number of silos. XGBoost compares them
        with sums over rows, of which a silo has only its share. Undivided, they prune the trees of
        small silos to stumps.
    shared_cuts : int
        Cut points a feature that all silos agree on before training; 0 is none.
    leaf_bits : int
        32 or 16 (float16 leaf values; with ``scrub = "stats"`` only).
    weight_bits : int
        32, or 8 or 4 for quantised differences of network weights.
    """

    name: ClassVar[str] = _TABLE

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
        return self.combiner in NETWORKS

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
        """Return the job as each silo of a roster grows its trees by it."""
        if not self.share_penalties:
            return job
        booster = job.booster
        return replace(
            job,
            booster=replace(booster, alpha=booster.alpha / n_silos, gamma=booster.gamma / n_silos),
        )

    def needs_label_sums(self, job: JobParameters) -> bool:
        """Whether silos add up their labels before they grow trees."""
        if job.task is not Task.REGRESSION:
            return False
        return self.scale_target or (self.center_target and job.booster.base_score is None)

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
        booster = job.booster
        bins = max(booster.max_bin, self.shared_cuts + 1)
        leaf_rows = rows_of_leaf(job.objective, booster)
        return Safeguards(booster.max_depth, bins=bins, leaf_rows=leaf_rows)

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` naming the parameter, the expected and the received value."""
        within(_TABLE, "trees", self.trees, 1, 1_000_000)
        within(_TABLE, "rounds", self.rounds, 1, 100_000)
        within(_TABLE, "epochs", self.epochs, 1, 100_000)
        within(_TABLE, "batch_size", self.batch_size, 1, 1 << 20)
        within(_TABLE, "channels", self.channels, 1, 256)
        within(_TABLE, "learning_rate", self.learning_rate, 1e-12, 1e3)
        within(_TABLE, "beta1", self.beta1, 0.0, 1.0, below=True)
        within(_TABLE, "beta2", self.beta2, 0.0, 1.0, below=True)
        within(_TABLE, "proximal", self.proximal, 0.0, 1e9)
        within(_TABLE, "validation", self.validation, 0.0, 0.5)
        within(_TABLE, "early_stopping_rounds", self.early_stopping_rounds, 0, 100_000)
        within(_TABLE, "server_rate", self.server_rate, 1e-12, 1e3)
        within(_TABLE, "server_momentum", self.server_momentum, 0.0, 1.0, below=True)
        within(_TABLE, "shared_cuts", self.shared_cuts, 0, 65_000)
        one_of(_TABLE, "scrub", self.scrub, ("stats", "none"))
        one_of(_TABLE, "combiner", self.combiner, COMBINERS)
        one_of(_TABLE, "server_optimiser", self.server_optimiser, OPTIMISERS)
        one_of(_TABLE, "leaf_bits", self.leaf_bits, LEAF_BITS)
        one_of(_TABLE, "weight_bits", self.weight_bits, WEIGHT_BITS)
        if self.penalty is not None:
            within(_TABLE, "penalty", self.penalty, 1e-9, 1e12)
        for number in self.epoch_choices:
            within(_TABLE, "epoch_choices", number, 1, 100_000)
        self._validate_together(job)
        metrics.check(job.metrics, job.task)

    def _validate_together(self, job: JobParameters) -> None:
        """Check parameters against each other and the job."""
        one_of(_TABLE, "objective", job.objective, OBJECTIVES[job.task])
        if self.combiner == "ridge" and job.task is not Task.REGRESSION:
            raise _unsuitable("combiner", "'logit_ridge' for classes", "'ridge'")
        if self.combiner == "logit_ridge" and job.task is Task.REGRESSION:
            raise _unsuitable("combiner", "'ridge' for regression", "'logit_ridge'")
        if (self.early_stopping_rounds or self.epoch_choices) and not self.validation:
            raise _unsuitable(
                "validation",
                "validation > 0, since early_stopping_rounds and epoch_choices choose on "
                "validation rows",
                0,
            )
        if self.epoch_choices and not self.is_network:
            raise _unsuitable(
                "epoch_choices",
                f"none, since combiner {self.combiner!r} has no epochs",
                self.epoch_choices,
            )
        if self.weight_bits != 32 and (not self.is_network or self.secure):
            raise _unsuitable(
                "weight_bits",
                "32, since only a network's weights are quantised, and secure sums mask whole "
                "integers",
                self.weight_bits,
            )
        if self.leaf_bits != 32 and self.scrub != "stats":
            raise _unsuitable(
                "leaf_bits",
                "32 without scrub 'stats', since a pack derives leaf values from the statistics "
                "and rounded ones take more bytes",
                self.leaf_bits,
            )
        if self.secure and job.min_silos < 3:
            raise _unsuitable("secure", "min_silos of 3 or more", job.min_silos)
        if self.scale_target and job.task is not Task.REGRESSION:
            raise _unsuitable("scale_target", f"false for a {job.task.value} job", "true")
        base = job.booster.base_score
        if base is not None and job.task is not Task.REGRESSION and base != 0.5:
            raise _unsuitable("base_score", "0.5 for classes", base)
        self._validate_effects(job)

    def _validate_effects(self, job: JobParameters) -> None:
        """Refuse what would be ignored."""
        optimiser, booster = self.server_optimiser, job.booster
        for condition, needed, names in (
            (
                self.is_network,
                f"a combiner of {', '.join(NETWORKS)}",
                (
                    "epochs", "batch_size", "learning_rate", "beta1", "beta2", "proximal",
                    "server_optimiser", "server_rate",
                ),
            ),
            (self.combiner in ("cnn", "conv3"), "a combiner of cnn, conv3", ("channels",)),
            (optimiser == "fedavgm", "server_optimiser = 'fedavgm'", ("server_momentum",)),
            (self.combiner in _DEFAULT_PENALTY, f"a combiner of {', '.join(_DEFAULT_PENALTY)}",
             ("penalty",)),
            (self.combiner not in ("mean", "ridge"), "a combiner with rounds", ("rounds",)),
            (job.task is Task.REGRESSION, "a regression", ("center_target",)),
            (booster.alpha or booster.gamma, "alpha or gamma in [booster]", ("share_penalties",)),
        ):  # fmt: skip
            only_with(condition, needed, _TABLE, self, *names)
        one_of("booster", "tree_method", booster.tree_method, ("hist", "approx", "exact"))
        one_of("booster", "sampling_method", booster.sampling_method, ("uniform",))
        check_parameters(job.objective, booster)


def _unsuitable(name: str, expected: str, received: object) -> InvalidJob:
    return InvalidJob(f"[{_TABLE}] {name}: expected {expected}, received {received}")
