"""Parameters of FedXGBllr."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from hedgerow.boosting import metrics
from hedgerow.boosting.allowances import PrivacyProperties
from hedgerow.boosting.checks import OneOf, Within, check_declared, check_gpu, one_of, only_with
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.bounds import rows_of_leaf
from hedgerow.boosting.engine.objective import check_parameters
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.trees.local import constrained

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters

NETWORKS = ("cnn", "conv3", "dense")
"""Combiners that are networks; in these a tree has no rate of its own."""
COMBINERS = (*NETWORKS, "mean", "ridge", "logit_ridge", "leaves")
DENSE_WIDTH = 256
"""Hidden units of ``dense``."""
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
_NETWORK_VALIDATION = 0.1
_TABLE = "fedxgbllr"
_PAPER_EPOCHS = 100
PAPER_BOOSTERS: Mapping[str, dict[str, Any]] = {
    "text": {"eta": 0.1, "max_depth": 8},
    "code": {"eta": 0.1, "max_depth": 8, "subsample": 0.8, "alpha": 5.0, "gamma": 5.0},
}
"""Boosters of ``paper``, by their name."""
_PAPER_SETS = tuple(PAPER_BOOSTERS["code"])


@dataclass(frozen=True, slots=True)
class FedXGBllr:
    """Parameters of the job's table ``fedxgbllr``; the package describes the protocol."""

    name: ClassVar[str] = _TABLE

    trees: Annotated[int, Within(1, 1_000_000)] = 500
    """Boosting steps of all silos together, T. Each of K silos makes T / K, at least one."""
    rounds: Annotated[int, Within(1, 100_000)] = 10
    """R. For ``leaves``, evaluations of the loss (30 come close to the minimum). ``ridge`` takes
    one round of them, ``logit_ridge`` two, ``mean`` none."""
    epochs: Annotated[int, Within(1, 100_000)] = 10
    """Local epochs a round, E. The paper's is 100, which over-fits; ten did better on all our sets
    (docs/results-fedxgbllr.md)."""
    batch_size: Annotated[int, Within(1, 1 << 20)] = 64
    """Rows of a mini-batch."""
    combiner: Annotated[str, OneOf(COMBINERS)] = "cnn"
    """``cnn``, its ablations ``conv3`` and ``dense``, ``mean``, ``ridge``, ``logit_ridge`` or
    ``leaves``; see :mod:`hedgerow.boosting.strategies.fedxgbllr.combiners`."""
    channels: Annotated[int, Within(1, 256)] = 64
    """Channels of the convolution."""
    learning_rate: Annotated[float, Within(1e-12, 1e3)] = 1e-3
    """Of Adam, in the silos."""
    beta1: Annotated[float, Within(0.0, 1.0, below=True)] = 0.5
    """Of Adam, in the silos."""
    beta2: Annotated[float, Within(0.0, 1.0, below=True)] = 0.999
    """Of Adam, in the silos."""
    penalty: Annotated[float | None, Within(1e-9, 1e12)] = None
    """Pull of ``ridge``, ``logit_ridge`` and ``leaves`` towards the mean of the ensembles. None:
    chosen on validation rows, or 100, 10 and 300 without them."""
    validation: Annotated[float | None, Within(0.0, 0.5)] = None
    """Share of each silo's rows that neither trees nor combiners are trained on. The best round,
    and penalty are chosen on them; round 0, the mean of the ensembles, is one of
    the rounds. None: 0.1 for networks, which over-fit, and 0 for other combiners."""
    early_stopping_rounds: Annotated[int, Within(0, 100_000)] = 0
    """Rounds without a better validation score after which the job ends; 0 is never."""
    center_target: bool = True
    """Subtract the mean of all silos' labels, and divide by their spread (regression)."""
    scale_target: bool = False
    """Subtract the mean of all silos' labels, and divide by their spread (regression)."""
    secure: bool = False
    """Mask what silos add; needs three silos."""
    scrub: Annotated[str, OneOf(("stats", "none"))] = "stats"
    """``stats`` removes statistics of rows from the trees that are sent, ``none`` nothing."""
    share_penalties: bool = False
    """Divide ``alpha`` and ``gamma`` of the booster by the number of silos. XGBoost compares them
    with sums over rows, of which a silo has only its share. Undivided, they prune the trees of
    small silos to stumps."""
    shared_cuts: Annotated[int, Within(0, 65_000)] = 0
    """Cut points a feature that all silos agree on before training; 0 is none."""
    leaf_bits: Annotated[int, OneOf(LEAF_BITS)] = 32
    """32 or 16 (float16 leaf values; with ``scrub = "stats"`` only)."""
    weight_bits: Annotated[int, OneOf(WEIGHT_BITS)] = 32
    """32, or 8 or 4 for quantised differences of network weights."""
    paper: Annotated[str, OneOf(("", *PAPER_BOOSTERS))] = ""
    """Train as published: all layers of the network start at random, 100 epochs a round, no rows
    are held out, the last round is the result, and the booster is that of the paper's ``text`` or
    of its authors' ``code``."""

    @property
    def local_epochs(self) -> int:
        """Epochs of a silo in a round."""
        return _PAPER_EPOCHS if self.paper else self.epochs

    @property
    def is_network(self) -> bool:
        """Whether a network is trained."""
        return self.combiner in NETWORKS

    @property
    def held_out(self) -> float:
        """Share of rows held out for choices."""
        if self.validation is None:
            return _NETWORK_VALIDATION if self.is_network and not self.paper else 0.0
        return self.validation

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
        booster = replace(job.booster, **PAPER_BOOSTERS.get(self.paper, {}))
        if self.share_penalties:
            booster = replace(booster, alpha=booster.alpha / n_silos, gamma=booster.gamma / n_silos)
        return replace(job, booster=booster)

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
        if self.held_out:
            return LEAF_PENALTIES if self.combiner == "leaves" else RIDGE_PENALTIES
        return (_DEFAULT_PENALTY.get(self.combiner, 0.0),)

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return self.trees

    def safeguards(self, job: JobParameters) -> PrivacyProperties:
        """Return what a silo's policy asks about."""
        booster = self.silo_job(job, 1).booster
        bins = max(booster.max_bin, self.shared_cuts + 1)
        leaf_rows = rows_of_leaf(job.objective, booster, job.columns)
        torch = f"combiner {self.combiner!r} trains a network" if self.is_network else ""
        return PrivacyProperties(booster.max_depth, bins=bins, leaf_rows=leaf_rows, torch=torch)

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` naming the parameter, the expected and the received value."""
        check_declared(_TABLE, self)
        self._validate_together(job)
        metrics.check(job.metrics, job.task)

    def validate_for(self, job: JobParameters, schema: Schema) -> None:
        """Raise :class:`InvalidJob` where the network is too narrow to start at the mean.

        So where a monotone constraint names no feature.
        """
        constrained(job.booster, schema)
        needed = 2 * schema.n_outputs
        if self.paper:
            return
        if self.combiner == "cnn" and self.channels < needed:
            raise _unsuitable("channels", f"at least {needed}, two an output", self.channels)
        if self.combiner == "conv3" and self.channels < 2:
            raise _unsuitable("channels", "at least 2", self.channels)
        if self.combiner == "dense" and needed > DENSE_WIDTH:
            raise _unsuitable("combiner", f"'cnn' for {schema.n_outputs} classes", "'dense'")

    def _validate_together(self, job: JobParameters) -> None:
        """Check parameters against each other and the job."""
        one_of(_TABLE, "objective", job.objective, OBJECTIVES[job.task])
        if self.is_network and job.columns.weighs:
            raise _unsuitable(
                "combiner",
                "'leaves', 'ridge', 'logit_ridge' or 'mean' with weights in [columns], since a "
                "mean of networks counts the silos by their rows",
                self.combiner,
            )
        if self.combiner == "ridge" and job.task is not Task.REGRESSION:
            raise _unsuitable("combiner", "'logit_ridge' for classes", "'ridge'")
        if self.combiner == "logit_ridge" and job.task is Task.REGRESSION:
            raise _unsuitable("combiner", "'ridge' for regression", "'logit_ridge'")
        if self.early_stopping_rounds and not self.held_out:
            raise _unsuitable(
                "validation",
                "validation > 0, since early_stopping_rounds chooses on validation rows",
                0,
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
        booster, own = job.booster, f"no paper = {self.paper!r}"
        only_with(not self.paper, f"{own} in [{_TABLE}]", "booster", booster, *_PAPER_SETS)
        for condition, needed, names in (
            (
                self.is_network,
                f"a combiner of {', '.join(NETWORKS)}",
                (
                    "epochs", "batch_size", "learning_rate", "beta1", "beta2", "paper",
                ),
            ),
            (not self.paper, own, ("epochs", "validation", "share_penalties")),
            (self.combiner in ("cnn", "conv3"), "a combiner of cnn, conv3", ("channels",)),
            (self.combiner in _DEFAULT_PENALTY, f"a combiner of {', '.join(_DEFAULT_PENALTY)}",
             ("penalty",)),
            (self.combiner not in ("mean", "ridge"), "a combiner with rounds", ("rounds",)),
            (self.combiner != "mean" or not self.validation, "a combiner that learns",
             ("validation",)),
            (job.task is Task.REGRESSION, "a regression", ("center_target",)),
            (booster.alpha or booster.gamma, "alpha or gamma in [booster]", ("share_penalties",)),
        ):  # fmt: skip
            only_with(condition, needed, _TABLE, self, *names)
        one_of("booster", "tree_method", booster.tree_method, ("hist", "approx", "exact"))
        check_gpu(booster.device, booster.tree_method)
        one_of("booster", "sampling_method", booster.sampling_method, ("uniform",))
        check_parameters(job.objective, booster)


def _unsuitable(name: str, expected: str, received: object) -> InvalidJob:
    return InvalidJob(f"[{_TABLE}] {name}: expected {expected}, received {received}")
