"""A job as every party sees it: what to predict, with which strategy and booster parameters."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from hedgerow.boosting.dataset import Task

if TYPE_CHECKING:
    from hedgerow.boosting.ports import Strategy


@dataclass(frozen=True, slots=True)
class Booster:
    """Tree parameters under XGBoost's own names and with its own defaults.

    ``lambda_`` is ``lambda`` in job files. ``None`` leaves a parameter to XGBoost's default, which
    the number in the docstring of its use states.
    """

    objective: str | None = None
    eta: float = 0.3
    gamma: float = 0.0
    max_depth: int = 6
    max_leaves: int = 0
    grow_policy: str = "depthwise"
    min_child_weight: float = 1.0
    max_delta_step: float = 0.0
    subsample: float = 1.0
    sampling_method: str = "uniform"
    colsample_bytree: float = 1.0
    colsample_bylevel: float = 1.0
    colsample_bynode: float = 1.0
    lambda_: float = 1.0
    alpha: float = 0.0
    tree_method: str = "hist"
    max_bin: int = 256
    scale_pos_weight: float = 1.0
    num_parallel_tree: int = 1
    max_cat_to_onehot: int = 4
    max_cat_threshold: int = 64
    base_score: float | None = None
    monotone_constraints: tuple[int, ...] = ()
    tweedie_variance_power: float = 1.5
    huber_slope: float = 1.0
    fair_c: float = 1.0

    def native(self) -> dict[str, Any]:
        """Return the parameters that differ from XGBoost's defaults, under its names.

        ``base_score`` and ``num_class`` are the strategy's to set; ``fair_c`` is ours alone.
        """
        default = Booster()
        given = {
            f.name.rstrip("_"): getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("base_score", "fair_c", "monotone_constraints")
            and getattr(self, f.name) != getattr(default, f.name)
        }
        if self.monotone_constraints:
            given["monotone_constraints"] = self.monotone_constraints
        return given


@dataclass(frozen=True, slots=True)
class JobParameters:
    """The job file, decoded.

    Parameters
    ----------
    name : str
    strategy : Strategy
        Frozen dataclass of the strategy's own parameters.
    label : str
    task : Task
    seed : int
        The one seed of the job; every stream is ``SeedSequence([seed, silo, round, purpose])``.
    min_silos : int
        Least number of silos that must be present to start and to go on.
    metrics : tuple[str, ...]
        Names as in ``hedgerow.boosting.metrics``.
    features : tuple[str, ...]
        Columns to use; empty means all.
    classes : int
        Size of the global class list of a multiclass job, 0 to agree on it from the silos.
    step_timeout_seconds : float
        Deadline of each exchange.
    start_timeout_seconds : float
        How long the job waits for ``min_silos``.
    has_test : bool
        Whether the coordinator evaluates rounds on a table of its own.
    """

    name: str
    strategy: Strategy
    label: str = "label"
    task: Task = Task.BINARY
    seed: int = 0
    min_silos: int = 1
    metrics: tuple[str, ...] = ()
    booster: Booster = field(default_factory=Booster)
    features: tuple[str, ...] = ()
    classes: int = 0
    step_timeout_seconds: float = 600.0
    start_timeout_seconds: float = 120.0
    silos: tuple[str, ...] = ()
    has_test: bool = False

    @property
    def objective(self) -> str:
        """The objective's name; by task where the job does not say."""
        if self.booster.objective is not None:
            return self.booster.objective
        return {
            Task.BINARY: "binary:logistic",
            Task.MULTICLASS: "multi:softprob",
            Task.REGRESSION: "reg:squarederror",
        }[self.task]
