"""The ``[booster]`` table of a job."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


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
