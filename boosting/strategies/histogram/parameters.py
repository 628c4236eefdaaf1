"""Histogram boosting with secure sums: the federated model equals the pooled one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from hedgerow.boosting import metrics
from hedgerow.boosting.engine.objective import StartRule, objective_of
from hedgerow.boosting.engine.quantising import static_bound
from hedgerow.boosting.engine.sampling import Sampler
from hedgerow.boosting.engine.splitting import TreeParameters
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.ports import Artefact, Forecast, Safeguards
from hedgerow.boosting.sums.steps import SumParameters

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.exchange import Hub, Link, Silo
    from hedgerow.boosting.job import Booster
    from hedgerow.boosting.ports import CoordinatorStart, JobParameters, RoundResult, SiloStart
    from hedgerow.crypto.vault import Vault

_REVEALS = """\
To the coordinator, with secure sums: sums over the silos that take part, never a silo's own part of
them. They are the number of rows; label sums where the objective starts from their mean or median;
with binning = "recursive" how many rows lie below proposed values; of each tree the totals and the
gradient histograms of one child of each split (the other follows); metric sums; with
sampling_scope = "global" how many rows have gradients of which size. Of each silo, without masks:
its name and when it takes part, its exact number of rows, its column names, category and class
lists; the power of two above its largest row weight, each round above its largest
gradient where the loss has no bound or gradients are coarse, and each scored round above its
largest metric sum; with binning = "summary" quantile summaries of every feature, which are values
of its rows. To every silo: the trees, the cut points, the lists of all silos united, the total
number of rows and the powers of two; with bins_policy = "proportional" the row count of the
largest silo.
Histograms hold no counts, but without sampling the hessians of squared error are counts, and those
of other losses are the same for equal margins. A deep node may hold few rows: min_child_weight and
max_depth are the levers.
A sum that was unmasked is never made again over another set of silos, and a silo lost inside a tree
closes that tree; so no two sums differ by one silo. If the coordinator colludes with all silos but
one, that one's sums are theirs to compute; with fewer they learn the sum of the rest.
With secure = false the coordinator sees each silo's histograms: labels of rows in rare bins can be
read off. With blind_coordinator = true the coordinator sees neither sums nor trees nor cut points,
only how many bisections it took; every silo sees the sums.
"""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Boosting from summed histograms, bit for bit what one table of all rows would give.

    Every row's gradients become integers before they are summed (fixed point with a range proof),
    so sums are exact in any order and under masks. The coordinator finds splits from sums and tells
    the silos; or, blind, passes masked totals on and every silo finds the same splits.

    | step | RPC | round, level | silo offers | silo gets |
    |---|---|---|---|---|
    | ``sync`` | ExchangeSketches | – | – | the round at which it may enter |
    | ``enter`` | ExchangeSketches | at setups | what it knows | cuts and trees so far |
    | ``sum-keys``, … | see ``boosting.sums`` | at setups | – | – |
    | ``opening`` | ExchangeSums | 0 | the power of two above weights | the largest |
    | ``sum`` | ExchangeSums | 0 | row count; label sums | totals |
    | ``median`` | ExchangeSums | 0, pass | labels below proposed values | the next proposals |
    | ``cuts`` | ExchangeSketches | 0 | quantile summaries | cut points |
    | ``counts`` | ExchangeSketches | 0, pass | rows below proposed values | the next, or cuts |
    | ``bounds`` | ExchangeSums | r, pass | powers of two above its gradients | the largest |
    | ``thresholds`` | ExchangeSums | r, pass | gradient sizes (global MVS) | the threshold |
    | ``histograms`` | ExchangeHistograms | r, level | sums by node, feature, bin | splits |
    | ``leaves`` | ExchangeHistograms | r | lossless sums by leaf (coarse search) | leaf values |
    | ``scores`` | ExchangeSums | r | metric sums | whether this was the last round |

    ``histograms``, ``leaves``, ``thresholds``, ``counts``, ``median`` and ``sum`` are secure sums
    of :mod:`hedgerow.boosting.sums`; ``scores`` is one of :mod:`boosting.sums.floats`. Level 0
    asks for a tree's totals and its root's histogram, level l for the lighter child of each pair;
    the heavier one is parent minus child. All classes of a round share its sums. A silo
    lost in a round is missing from the next sums; inside a tree that sum stays masked, open nodes
    become leaves, and the next round starts without it. A silo that comes (back) later enters at
    a round's start,
    where fresh keys are agreed on. ``[booster]`` has XGBoost's names and defaults; the paper's
    profile is 200 rounds of depth 3 to 8 with eta from .001 to .1.

    Parameters
    ----------
    rounds : int
    secure : bool
        Mask sums; needs three silos.
    dropout_recovery : bool
        Survive silos lost inside a sum, for one more exchange a sum.
    blind_coordinator : bool
        Hide totals, trees and cut points from the coordinator. Silos keep the model.
    threshold : int or None
        Silos that must agree to an unmasking; ``floor(2n/3) + 1`` when ``None``.
    binning : str
        ``summary`` (quantile summaries in clear), ``recursive`` (bisecting on securely summed
        counts) or ``given`` (``cut_points``).
    cut_points : tuple of str
        For ``given``: ``"feature: 0.5 1.5 2"`` for each numeric feature.
    binning_error : float
        Rank error of ``recursive``, relative to the rows.
    bins_policy : str
        Size of a silo's summary: ``fixed``, ``pax_printed`` or ``proportional`` (PAX).
    growth : str
        ``depthwise`` or ``lossguide``; empty takes ``grow_policy`` of ``[booster]``.
    multi_output : bool
        One tree with vector leaves a round instead of one tree a class.
    sampling : str
        ``none``, ``uniform``, ``goss`` or ``mvs``; each silo draws from its own rows.
    sampling_rate : float
        Share that uniform and MVS keep.
    sampling_scope : str
        ``local``: each silo has an MVS threshold of its own; ``global``: one for all, from summed
        log-histograms of the rows' scores, which keeps more rows where gradients are larger.
    reweight : bool
        Whether uniform weights kept rows by ``1 / sampling_rate`` (XGBoost does not).
    mvs_lambda, top_rate, other_rate : float
        See :class:`hedgerow.boosting.engine.sampling.Sampler`.
    coarse_bits : int
        Bits of the gradients that splits are searched on, 2 to 16; leaves are then renewed from
        lossless sums. 0: lossless throughout.
    ring_bits : int
        64 or 48: ring of lossless sums. Coarse sums use 32 where their bound allows.
    validation : float
        Share of each silo's rows held out to score rounds on.
    early_stopping_rounds : int
        Rounds without a better score on validation rows that end the job; 0 is never.

    References
    ----------
    Cheng et al., SecureBoost, 2021 (its horizontal form in FATE). docs/strategies/histogram.md;
    docs/threat-model.md for the secure sums.
    """

    name: ClassVar[str] = "histogram"
    reveals: ClassVar[str] = _REVEALS

    rounds: int = 100
    secure: bool = True
    dropout_recovery: bool = True
    blind_coordinator: bool = False
    threshold: int | None = None
    binning: str = "summary"
    cut_points: tuple[str, ...] = ()
    binning_error: float = 1e-4
    bins_policy: str = "fixed"
    growth: str = ""
    multi_output: bool = False
    sampling: str = "none"
    sampling_rate: float = 0.5
    sampling_scope: str = "local"
    reweight: bool = True
    mvs_lambda: float = 0.1
    top_rate: float = 0.2
    other_rate: float = 0.1
    coarse_bits: int = 0
    ring_bits: int = 64
    validation: float = 0.0
    early_stopping_rounds: int = 0

    @property
    def sampler(self) -> Sampler:
        """How silos draw their rows."""
        return Sampler(
            self.sampling,
            self.sampling_rate if self.sampling in ("uniform", "mvs") else 1.0,
            self.reweight,
            self.mvs_lambda,
            self.top_rate,
            self.other_rate,
        )

    @property
    def shares_threshold(self) -> bool:
        """Whether all silos sample by one threshold."""
        return self.sampling == "mvs" and self.sampling_scope == "global"

    def sum_parameters(self, job: JobParameters) -> SumParameters:
        """Return how sums are made."""
        return SumParameters(
            secure=self.secure,
            dropout_recovery=self.dropout_recovery,
            blind_coordinator=self.blind_coordinator,
            threshold=self.threshold,
            batch=64,
            least_silos=max(job.min_silos, 3 if self.secure else 1),
        )

    def needs_bounds(self, job: JobParameters, n_outputs: int) -> bool:
        """Whether silos tell powers of two of their gradients each round."""
        objective = objective_of(job.objective, job.task, job.booster)
        return bool(self.coarse_bits or self.shares_threshold) or (
            static_bound(objective, self.sampler, n_outputs, 1.0) is None
        )

    @property
    def n_results(self) -> int:
        """Rounds that are reported, at most."""
        return self.rounds

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return self.rounds

    def validate_cohort(self, n_silos: int) -> None:
        """Raise :class:`InvalidJob` where the threshold does not suit the number of silos."""
        if self.threshold is None or not self.secure:
            return
        nearest = min(max(self.threshold, n_silos // 2 + 1), n_silos)
        if self.threshold != nearest:
            raise InvalidJob(
                f"[histogram] threshold: {self.threshold} of {n_silos} silos cannot be what an "
                f"unmasking needs, which is more than half of them; it could be {nearest}"
            )

    def safeguards(self, job: JobParameters) -> Safeguards:
        """Return what a silo's policy asks about."""
        return Safeguards(job.booster.max_depth, secure=self.secure)

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` naming the parameter, what was expected and what came."""
        _expect("rounds", self.rounds, 1, 100_000)
        _expect("binning_error", self.binning_error, 0.0, 0.1)
        _expect("validation", self.validation, 0.0, 0.5)
        _expect("early_stopping_rounds", self.early_stopping_rounds, 0, 100_000)
        _choose("binning", self.binning, ("summary", "recursive", "given"))
        _choose("bins_policy", self.bins_policy, ("fixed", "pax_printed", "proportional"))
        _choose("sampling_scope", self.sampling_scope, ("local", "global"))
        _choose("growth", self.growth, ("", "depthwise", "lossguide"))
        _choose("ring_bits", self.ring_bits, (64, 48))
        _choose("coarse_bits", self.coarse_bits, (0, *range(2, 17)))
        _ = self.sampler
        booster = self.booster_of(job)
        objective = objective_of(job.objective, job.task, booster)
        parameters = TreeParameters.of(booster, max(len(booster.monotone_constraints), 1))
        if not 2 <= booster.max_bin <= 65535:
            raise InvalidJob(f"max_bin: expected 2 to 65535, came {booster.max_bin}")
        if booster.num_parallel_tree != 1:
            raise InvalidJob("num_parallel_tree: the histogram strategy grows one tree at a time")
        if booster.subsample != 1.0:
            raise InvalidJob("subsample: use [histogram] sampling and sampling_rate instead")
        if booster.base_score is not None:
            objective.margin_of(booster.base_score)
        if self.multi_output and parameters.monotone:
            raise InvalidJob("monotone_constraints: not for trees with several outputs")
        if self.binning == "given" and not self.cut_points:
            raise InvalidJob("[histogram] cut_points: expected for binning = 'given', none came")
        if self.early_stopping_rounds and not self.validation:
            raise InvalidJob("[histogram] early_stopping_rounds: expected validation > 0")
        self._validate_blind(job, parameters, objective.start_rule)
        metrics.check(job.metrics, job.task)

    def _validate_blind(
        self, job: JobParameters, parameters: TreeParameters, start_rule: StartRule
    ) -> None:
        if not self.blind_coordinator:
            return
        if not self.secure:
            raise InvalidJob("[histogram] blind_coordinator: needs secure = true")
        if self.binning == "summary":
            raise InvalidJob(
                "[histogram] binning: a blind coordinator sees no summaries; "
                "use 'recursive' or 'given'"
            )
        if self.validation:
            raise InvalidJob("[histogram] validation: a blind coordinator learns no scores")
        if self.shares_threshold:
            raise InvalidJob("[histogram] sampling_scope: a blind coordinator finds no threshold")
        if start_rule is StartRule.MEDIAN and job.booster.base_score is None:
            raise InvalidJob("base_score: expected one, since a blind coordinator finds no median")
        if not parameters.loss_guided and not 1 <= parameters.max_depth <= 12:
            raise InvalidJob("max_depth: expected 1 to 12 with a blind coordinator")
        if parameters.loss_guided and not parameters.max_leaves:
            raise InvalidJob("max_leaves: expected with lossguide and a blind coordinator")

    def booster_of(self, job: JobParameters) -> Booster:
        """Return the job's booster with ``growth`` in it."""
        return replace(job.booster, grow_policy=self.growth) if self.growth else job.booster

    def coordinate(self, hub: Hub, start: CoordinatorStart) -> AsyncIterator[RoundResult]:
        """Run the coordinator half."""
        from hedgerow.boosting.strategies.histogram.coordinator import coordinate

        return coordinate(self, hub, start)

    def participate(self, link: Link, vault: Vault | None, start: SiloStart) -> Artefact | None:
        """Run the silo half; with a blind coordinator the model stays in the silo."""
        from hedgerow.boosting.strategies.histogram.silo import participate

        return participate(self, link, vault, start)

    def artefact(self, job: JobParameters, schema: Schema, checkpoint: bytes) -> Artefact:
        """Return ``model.ubj``, a stock XGBoost model; of a blind job only what may be known."""
        from hedgerow.boosting.strategies.histogram.coordinator import artefact

        return artefact(self, checkpoint)

    def forecast(
        self, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
    ) -> Forecast:
        """Return messages and bytes by formula, trees taken as full."""
        from hedgerow.boosting.strategies.histogram.forecast import forecast

        return forecast(self, job, schema, n_samples)


def _expect(name: str, value: float, least: float, largest: float) -> None:
    if not least <= value <= largest:
        raise InvalidJob(f"[histogram] {name}: expected {least} to {largest}, came {value}")


def _choose(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        choices = ", ".join(repr(choice) for choice in known)
        raise InvalidJob(f"[histogram] {name}: expected one of {choices}, came {value!r}")
