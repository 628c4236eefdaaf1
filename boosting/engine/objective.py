"""Objectives: gradient pairs, losses and start margins, under XGBoost's names and FATE's.

Gradients are float32, computed from float32 margins by XGBoost's own formulas where the objective
has XGBoost's name; integer sums of them (``histogram``) then lead to XGBoost's trees. FATE's
names keep FATE's scale: ``lse`` has twice the gradients of ``reg:squarederror``, ``softmax`` half
the hessian of ``multi:softprob``.

References
----------
FATE, https://github.com/FederatedAI/FATE, for the second set; XGBoost for the first.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.checks import one_of, only_with, within
from hedgerow.boosting.dataset import Labels, RowGradients, Task
from hedgerow.boosting.engine import ranking
from hedgerow.boosting.engine.formula import Formula
from hedgerow.boosting.engine.survival import MOST, check_failure_times, failure_times
from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.failure_times import DISTRIBUTIONS, FailureTimes
from hedgerow.boosting.job import Booster
from hedgerow.boosting.queries import MOST_ROWS
from hedgerow.crypto.native.kernels import Strided, kernel

Floats = NDArray[np.float64]


_BLOCK_ROWS = 1 << 16
_LEAST_MEAN = 1e-6
_LEAST_LOG = -0.999
_LEAST_CHANCE = np.float32(1e-6)  # XGBoost clips a base score so before its logarithm

_logf = ctypes.CDLL(None).logf
_logf.argtypes, _logf.restype = [ctypes.c_float], ctypes.c_float


class StartRule(Enum):
    """Where margins begin when the job gives no ``base_score``."""

    ZERO = "zero"
    MEAN = "mean"
    MEDIAN = "median"
    QUANTILE = "quantile"
    """Of labels in cells of many rows (:class:`~.bisection.Cells`), which take their place."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A loss, its gradients, and what training and export need of it."""

    name: str
    """As the job gives it."""
    model_name: str
    """XGBoost objective of the exported model (same link function)."""
    tasks: frozenset[Task]
    start_rule: StartRule
    """Statistic of the labels that margins start from; global, never of one silo."""
    kernel: int
    """Number of the formula."""
    parameter: float
    """δ, c, ρ or the quantile of losses that have one; ``max_delta_step`` of Poisson's hessian; the
    scale of failure times; rows of a query that are compared with all rows below them."""
    positive_scale: float
    """``scale_pos_weight``."""
    bound: tuple[float, float] | None
    """Largest ``|g|`` and ``h`` of a row of weight one; ``None`` where the loss has no bound."""
    more_quantiles: tuple[float, ...] = ()
    """Of several quantiles those after :attr:`parameter`, an output each of one label."""
    by_distance: bool = True
    """Whether a pair of a ranking counts less the further its scores are apart."""
    given: bool = False
    """Whether who has the rows gives their gradients (:func:`given_pairs`), and no formula does."""
    formula: Formula | None = None
    """A loss of the job's own, in place of the objective's."""

    def gradients(
        self,
        margins: NDArray[np.float32],
        y: Floats,
        weight: Floats | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return g and h of every row and output.

        Parameters
        ----------
        margins : ndarray of shape (n_samples, n_outputs), float32
        y : ndarray of shape (n_samples,), float64; of several labels (n_samples, n_outputs), of
            bounds of times, or of relevance and query, (n_samples, 2)
        weight : ndarray of shape (n_samples,), float64, or None

        Returns
        -------
        g, h : ndarray of shape (n_samples, n_outputs), float32
        """
        g = np.empty(margins.shape, dtype=np.float32)
        h = np.empty(margins.shape, dtype=np.float32)
        self._write(margins, y, weight, g, h)
        return g, h

    def pairs(
        self, margins: NDArray[np.float32], y: Labels, weight: Floats | None = None
    ) -> NDArray[np.float32]:
        """Return g and h as in :meth:`gradients`, interleaved: shape (n_samples, 2 * n_outputs).

        Labels are read a block of rows at a time, so that nothing else is row-sized.
        """
        out = np.empty((margins.shape[0], 2 * margins.shape[1]), dtype=np.float32)
        n_rows = margins.shape[0]
        block = max(n_rows, 1) if self.kernel < 0 else _BLOCK_ROWS  # queries are whole
        for first in range(0, n_rows, block):
            rows = slice(first, first + block)
            own = None if weight is None else weight[rows]
            self._write(margins[rows], y[rows], own, out[rows, 0::2], out[rows, 1::2])
        return out

    def _write(
        self,
        margins: NDArray[np.float32],
        y: Labels,
        weight: Floats | None,
        g: NDArray[np.float32],
        h: NDArray[np.float32],
    ) -> None:
        if self.kernel < 0:
            kind, top = ranking.KINDS[self.name], int(self.parameter)
            ranking.write_gradients(
                kind, top, margins[:, 0], y, g[:, 0], h[:, 0], by_distance=self.by_distance
            )
            return
        weights = np.empty(0, np.float32) if weight is None else weight.astype(np.float32)
        labels = y.astype(np.float32, copy=False)
        if self.formula is not None:
            w = weights if len(weights) else np.float32(1.0)
            for k, (own, label, _) in enumerate(self._by_output(margins, labels)):
                pair = self.formula.gradients(own.astype(np.float64), label.astype(np.float64))
                with np.errstate(over="ignore"):
                    weighed = [one.astype(np.float32) * w for one in pair]
                held = np.isfinite(weighed).all(axis=0)
                g[:, k], h[:, k] = (np.where(held, one, np.float32(0.0)) for one in weighed)
            return
        if self.kernel in (_SOFTPROB, _SOFTMAX):
            factor = 2.0 if self.kernel == _SOFTPROB else 1.0
            _softmax(margins, labels, weights, np.float32(factor), Strided(g), Strided(h))
            return
        if self.kernel >= _AFT:
            kind, pairs, own = self.kernel - _AFT, np.ascontiguousarray(labels), margins[:, 0]
            g_only, h_only = Strided(g[:, 0]), Strided(h[:, 0])
            failure_times(kind, self.parameter, own, pairs, weights, g_only, h_only)
            return
        for k, (own, label, a) in enumerate(self._by_output(margins, labels)):
            one, g_only, h_only = np.ascontiguousarray(own), Strided(g[:, k]), Strided(h[:, k])
            if self.kernel == _LOGISTIC:
                _logistic(one, label, weights, np.float32(self.positive_scale), g_only, h_only)
            else:
                _regression(self.kernel, a, one, label, weights, g_only, h_only)

    def losses(self, margins: NDArray[np.float32], y: Floats) -> Floats:
        """Return each row's loss, shape (n_samples,), float64, in numerically safe forms.

        Of several labels it is the sum over them.
        """
        s = margins.astype(np.float64)
        if self.kernel < 0:
            raise NotImplementedError(f"{self.name} has gradients and no loss of a row")
        if self.kernel in (_SOFTPROB, _SOFTMAX):
            top = s.max(axis=1, keepdims=True)
            total = top[:, 0] + np.log(np.exp(s - top).sum(axis=1))
            return np.asarray(total - s[np.arange(s.shape[0]), y.astype(np.intp)])
        if self.kernel >= _AFT:
            of = FailureTimes(DISTRIBUTIONS[self.kernel - _AFT], self.parameter)
            return of.losses(s[:, 0], y)
        if (formula := self.formula) is not None:
            each = [formula.values(own, label) for own, label, _ in self._by_output(s, y)]
        else:
            each = [_LOSSES[self.kernel](*one) for one in self._by_output(s, y)]
        return np.asarray(np.sum(each, axis=0))

    def _by_output(
        self, margins: NDArray[Any], y: NDArray[Any]
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any], float]]:
        """Yield the margins, the labels and the parameter of each output."""
        n = margins.shape[1]
        labels = [np.ascontiguousarray(own) for own in y.T] if y.ndim == 2 else [y]
        if self.more_quantiles:
            labels *= n
        parameters = self.quantiles if self.more_quantiles else (self.parameter,) * n
        return zip(margins.T, labels, parameters, strict=True)

    @property
    def quantiles(self) -> tuple[float, ...]:
        """Ranks of leaves that are quantiles, one of each output."""
        return (self.parameter, *self.more_quantiles)

    def check_labels(self, y: Floats, n_classes: int) -> None:
        """Raise :class:`DataError` where a label is outside the loss's domain."""
        if self.by_risk_sets and not np.all((y[:, 0] == y[:, 1]) | np.isinf(y[:, 1])):
            raise DataError(
                "labels: survival:cox expects events that were seen, or were not by the label's "
                "time, and no other bounds; survival:aft takes them"
            )
        if self.kernel >= _COX:
            if not np.all((y[:, 0] <= y[:, 1]) & (y[:, 0] >= 0) & (y[:, 1] > 0)):
                raise DataError("labels: expected times from 0, the latest not before the earliest")
            return
        if not np.all(np.isfinite(y)):
            raise DataError("labels: expected finite values")
        if self.kernel < 0:
            if why := ranking.labels_refused(ranking.KINDS[self.name], y):
                raise DataError(f"labels: {self.name}: {why}")
            return
        if self.name == "reg:logistic":
            if not np.all((y >= 0) & (y <= 1)):
                raise DataError(f"labels: {self.name} expects numbers from 0 to 1")
        elif self.kernel in (_LOGISTIC, _HINGE) and not np.all((y == 0) | (y == 1)):
            raise DataError(f"labels: {self.name} expects 0 and 1")
        if self.kernel in (_SOFTPROB, _SOFTMAX) and not np.all(
            (y >= 0) & (y < n_classes) & (y == np.floor(y))
        ):
            raise DataError(f"labels: {self.name} expects whole numbers below {n_classes}")
        if self.kernel in (_TWEEDIE, _POISSON) and not np.all(y >= 0):
            raise DataError(f"labels: {self.name} expects no negative values")
        if self.kernel == _SQUARED_LOG and not np.all(y > -1):
            raise DataError(f"labels: {self.name} expects values above -1")
        if self.kernel == _GAMMA and not np.all(y > 0):
            raise DataError(f"labels: {self.name} expects values above 0")

    def margin_of(self, base_score: float) -> float:
        """Return the margin of a base score on the label's scale, in XGBoost's own float32.

        The logarithm is the C library's, as in XGBoost, and NumPy's rounds in another way: a
        training resumed from a stored model needs margins that equal those of an uninterrupted
        one bit for bit.
        """
        with np.errstate(over="ignore"):
            score = np.float32(base_score)
        if self.kernel == _LOGISTIC and self.name != "binary:logitraw":  # XGBoost's is a margin
            if not 0 <= base_score <= 1:
                raise InvalidJob(
                    f"[booster] base_score: expected from 0 to 1, received {base_score}"
                )
            score = np.clip(score, _LEAST_CHANCE, np.float32(1) - _LEAST_CHANCE)
            return -float(_logf(np.float32(1) / score - np.float32(1)))
        if self.kernel in _LOGARITHMIC:
            if not 0 < score < np.inf:
                raise InvalidJob(
                    f"[booster] base_score: expected a float32 above 0, received {base_score}"
                )
            return float(_logf(score))
        return float(score)

    def start_values(self, y: Floats) -> Floats:
        """Return of each label what :meth:`start_of` takes the mean of."""
        if self.kernel == _SQUARED_LOG:
            return np.asarray(np.maximum(np.log1p(y), _LEAST_LOG))
        return y

    def start_of(self, mean: float) -> float:
        """Return the base score for a mean of start values, clipped into the loss's domain.

        Of the squared logarithmic error it is the Newton step from a margin of zero, of the hinge
        loss the class that this step is towards, as XGBoost's.
        """
        if self.kernel == _HINGE:
            return float(mean > 0.5)
        if self.kernel == _SQUARED_LOG:
            mean /= max(1 + mean, _LEAST_MEAN)
        if self.kernel == _LOGISTIC:
            if self.positive_scale != 1 and self.tasks == _BINARY:
                # XGBoost's Newton step from a margin of zero, where positive rows weigh more.
                share = self.positive_scale * mean / (self.positive_scale * mean + 1 - mean)
                if self.name == "binary:logitraw":
                    return float(np.float32(4 * share - 2))
                mean = 1 / (1 + math.exp(2 - 4 * share))
        elif self.kernel in _EXPONENTIAL:
            mean = max(mean, _LEAST_MEAN)
        return float(np.float32(mean))

    def by_script(self) -> Objective:
        """Return the same link and labels with gradients that are given.

        Raises
        ------
        InvalidJob
            Rows are compared with each other, or leaves are not by gradients alone.
        """
        self._check_replaced("[histogram] gradients")
        return replace(self, given=True, bound=None, start_rule=StartRule.ZERO, positive_scale=1.0)

    def by_formula(self, formula: Formula) -> Objective:
        """Return the same link, labels and start with a loss of the job's own, as above."""
        self._check_replaced("[booster] loss")
        if self.kernel in (_SOFTPROB, _SOFTMAX):
            raise InvalidJob(
                f"[booster] loss: expected none with {self.name}, whose outputs share a label"
            )
        formula.check()
        return replace(self, formula=formula, bound=None)

    def _check_replaced(self, key: str) -> None:
        if self.kernel < 0 or self.in_cells or self.kernel >= _COX:
            raise InvalidJob(
                f"{key}: expected none with {self.name}, whose trees take more of the labels than "
                "gradients of rows"
            )

    @property
    def renews(self) -> bool:
        """Whether leaves are quantiles of residuals, at the ranks of :attr:`quantiles`."""
        return self.kernel in (_ABSOLUTE, _QUANTILE)

    @property
    def in_cells(self) -> bool:
        """Whether labels are divided into cells of many rows."""
        return self.name in _IN_CELLS

    @property
    def by_risk_sets(self) -> bool:
        """Whether gradients are those of :class:`~.cox.RiskSets`, and not of this class."""
        return self.kernel == _COX

    @property
    def exponential(self) -> bool:
        """Whether gradients grow with the margin's exponential."""
        return self.kernel in _EXPONENTIAL and not self.replaced

    @property
    def curves(self) -> bool:
        """Whether ``h`` of a row may grow from round to round, though not exponentially."""
        return self.kernel == _SQUARED_LOG or self.replaced

    @property
    def replaced(self) -> bool:
        """Whether gradients are not those of the objective that is named."""
        return self.given or self.formula is not None

    @property
    def steepest(self) -> float:
        """The largest ``h`` of a row of weight one, as a share of :attr:`bound`'s."""
        return {_LOGISTIC: 0.25, _SOFTPROB: 0.5, _SOFTMAX: 0.25}.get(self.kernel, 1.0)

    @property
    def default_base_score(self) -> float:
        """Base score for :attr:`StartRule.ZERO`: of margin zero, and XGBoost's of failure times."""
        if self.kernel == _LOGISTIC or self.kernel >= _AFT:
            return 0.5
        return 1.0 if self.kernel in (*_EXPONENTIAL, _COX) else 0.0


(
    _LOGISTIC,
    _SOFTPROB,
    _SOFTMAX,
    _SQUARED,
    _LSE,
    _LAE,
    _HUBER,
    _FAIR,
    _LOG_COSH,
    _TWEEDIE,
    _POISSON,
    _GAMMA,
    _SQUARED_LOG,
    _HINGE,
    _ABSOLUTE,
    _QUANTILE,
    _COX,
    _AFT,  # and the two after it: one a distribution
) = range(18)
_RANKED = -1
"""Of all objectives whose gradients follow from whole queries."""

_EXPONENTIAL = (_TWEEDIE, _POISSON, _GAMMA)
_LOGARITHMIC = (*_EXPONENTIAL, _COX, *(_AFT + k for k in range(len(DISTRIBUTIONS))))

_BINARY = frozenset({Task.BINARY})
_CLASSES = frozenset({Task.MULTICLASS})
_NUMBERS = frozenset({Task.REGRESSION})
_TIMES = frozenset({Task.SURVIVAL})
_RANKS = frozenset({Task.RANKING})

_KINDS: dict[str, tuple[int, str, frozenset[Task], StartRule]] = {
    "binary:logistic": (_LOGISTIC, "binary:logistic", _BINARY, StartRule.MEAN),
    "binary:logitraw": (_LOGISTIC, "binary:logitraw", _BINARY, StartRule.MEAN),
    "binary:hinge": (_HINGE, "binary:hinge", _BINARY, StartRule.MEAN),
    "bce": (_LOGISTIC, "binary:logistic", _BINARY, StartRule.ZERO),
    "multi:softprob": (_SOFTPROB, "multi:softprob", _CLASSES, StartRule.ZERO),
    "multi:softmax": (_SOFTPROB, "multi:softmax", _CLASSES, StartRule.ZERO),
    "softmax": (_SOFTMAX, "multi:softprob", _CLASSES, StartRule.ZERO),
    "reg:squarederror": (_SQUARED, "reg:squarederror", _NUMBERS, StartRule.MEAN),
    "lse": (_LSE, "reg:squarederror", _NUMBERS, StartRule.MEAN),
    "lae": (_LAE, "reg:squarederror", _NUMBERS, StartRule.MEDIAN),
    "reg:pseudohubererror": (_HUBER, "reg:pseudohubererror", _NUMBERS, StartRule.MEAN),
    "huber": (_HUBER, "reg:pseudohubererror", _NUMBERS, StartRule.MEAN),
    "fair": (_FAIR, "reg:squarederror", _NUMBERS, StartRule.MEAN),
    "log_cosh": (_LOG_COSH, "reg:squarederror", _NUMBERS, StartRule.MEAN),
    "reg:tweedie": (_TWEEDIE, "reg:tweedie", _NUMBERS, StartRule.MEAN),
    "tweedie": (_TWEEDIE, "reg:tweedie", _NUMBERS, StartRule.ZERO),
    "count:poisson": (_POISSON, "count:poisson", _NUMBERS, StartRule.MEAN),
    "reg:gamma": (_GAMMA, "reg:gamma", _NUMBERS, StartRule.MEAN),
    "reg:logistic": (_LOGISTIC, "reg:logistic", _NUMBERS, StartRule.MEAN),
    "reg:squaredlogerror": (_SQUARED_LOG, "reg:squaredlogerror", _NUMBERS, StartRule.MEAN),
    "survival:aft": (_AFT, "survival:aft", _TIMES, StartRule.ZERO),
    **{name: (_RANKED, name, _RANKS, StartRule.ZERO) for name in ranking.KINDS},
}
_IN_CELLS: dict[str, tuple[int, str, frozenset[Task], StartRule]] = {
    "reg:absoluteerror": (_ABSOLUTE, "reg:absoluteerror", _NUMBERS, StartRule.QUANTILE),
    "reg:quantileerror": (_QUANTILE, "reg:quantileerror", _NUMBERS, StartRule.QUANTILE),
    "survival:cox": (_COX, "survival:cox", _TIMES, StartRule.ZERO),
}
"""Of which gradients of a silo's own rows are not enough: leaves are quantiles of residuals, or a
row is compared with those of other silos. Labels are in cells of many rows."""

_POISSON_MAX_DELTA_STEP = 0.7
QUANTILES = (0.01, 0.99)
"""Least and greatest ``quantile_alpha`` where labels are in cells of a share of the rows."""


def max_delta_step_of(booster: Booster) -> float:
    """Return the bound of leaf weights, 0 for none; as in XGBoost, Poisson's is 0.7 by default."""
    if booster.objective == "count:poisson" and not booster.max_delta_step:
        return _POISSON_MAX_DELTA_STEP
    return booster.max_delta_step


def check_ranking(booster: Booster) -> int:
    """Return how many rows are compared with all below; raises :class:`InvalidJob` for too many."""
    top = booster.lambdarank_num_pair_per_sample
    within("booster", "lambdarank_num_pair_per_sample", top, 1, MOST_ROWS)
    return top


def check_quantiles(booster: Booster, least: float, most: float) -> None:
    """Raise :class:`InvalidJob` for quantiles out of range, or not in their order."""
    asked = (booster.quantile_alpha, *booster.more_alphas)
    for alpha in asked:
        within("booster", "quantile_alpha", alpha, least, most)
    if list(asked) != sorted(set(asked)):
        raise InvalidJob(
            "[booster] quantile_alpha: expected quantiles that rise, received "
            + ", ".join(f"{alpha:g}" for alpha in asked)
        )


def given_pairs(
    gradients: RowGradients, round_: int, margins: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return g and h as :meth:`Objective.pairs` does, as a script's function gives them.

    Parameters
    ----------
    margins : ndarray of shape (n_samples, n_outputs), float32

    Raises
    ------
    DataError
        The function raises, of which its type is told alone, or returns what are no gradients.
    """
    out = np.empty((margins.shape[0], 2 * margins.shape[1]), np.float32)
    try:
        pair = gradients(round_, margins.copy())
        for k, (name, values) in enumerate(zip(("gradients", "hessians"), pair, strict=True)):
            own = np.asarray(values, np.float32)
            if own.size != margins.size:
                raise DataError(
                    f"gradients: expected {margins.size} {name}, one a row and output, received "
                    f"{own.size} of the script's function"
                )
            out[:, k::2] = own.reshape(margins.shape)
    except DataError:
        raise
    except Exception as error:  # its words may have labels in them
        raise DataError(
            f"gradients: the script's function raised {type(error).__name__}"
        ) from error
    if not np.isfinite(out).all() or (out[:, 1::2] < 0).any():
        raise DataError(
            "gradients: expected finite gradients, and hessians from 0, received others of the "
            "script's function"
        )
    return out


def searches_median(name: str) -> bool:
    """Return whether training starts at the labels' median, for which rows are counted."""
    return name in _KINDS and _KINDS[name][3] is StartRule.MEDIAN


def objective_of(name: str, task: Task, booster: Booster, *, in_cells: bool = False) -> Objective:
    """Return the objective of a job.

    Parameters
    ----------
    in_cells : bool
        Whether the strategy can divide labels into cells, and count rows by them.

    Raises
    ------
    InvalidJob
        An objective that the engine does not have or that is of another task, or a parameter out
        of range.
    """
    kinds = _KINDS | _IN_CELLS if in_cells else _KINDS
    one_of("booster", "objective", name, kinds)
    kernel, model_name, tasks, start_rule = kinds[name]
    if task not in tasks:
        raise InvalidJob(f"[booster] objective: {name} is not for a {task.value} task")
    parameter = 0.0
    bound: tuple[float, float] | None = None
    if kernel == _HUBER:
        parameter = booster.huber_slope
        bound = (parameter, 1.0)
    elif kernel == _FAIR:
        parameter = booster.fair_c
        bound = (parameter, 1.0)
    elif kernel == _TWEEDIE:
        parameter = booster.tweedie_variance_power
        if not 1 < parameter < 2:
            raise InvalidJob(
                "[booster] tweedie_variance_power: expected above 1 and below 2, "
                f"received {parameter}"
            )
    elif kernel == _POISSON:
        parameter = booster.max_delta_step or _POISSON_MAX_DELTA_STEP
    elif kernel == _AFT:
        kernel += DISTRIBUTIONS.index(check_failure_times(booster).distribution)
        parameter = float(np.float32(booster.aft_loss_distribution_scale))
        bound = (MOST, MOST)
    elif kernel == _RANKED:
        parameter = check_ranking(booster)
        bound = ranking.bound(int(parameter))
    elif kernel in (_ABSOLUTE, _QUANTILE):
        check_quantiles(booster, *QUANTILES)
        parameter = booster.quantile_alpha if kernel == _QUANTILE else 0.5
        bound = (1.0, 1.0)
    elif kernel in (_LOGISTIC, _LAE, _LOG_COSH, _HINGE) or kernel in (_SOFTPROB, _SOFTMAX):
        bound = (1.0, 1.0)
    if kernel in (_HUBER, _FAIR) and not parameter > 0:
        key = "huber_slope" if kernel == _HUBER else "fair_c"
        raise InvalidJob(f"[booster] {key}: expected above 0, received {parameter}")
    if not booster.scale_pos_weight > 0:
        raise InvalidJob(
            f"[booster] scale_pos_weight: expected above 0, received {booster.scale_pos_weight}"
        )
    positive = booster.scale_pos_weight if kernel == _LOGISTIC else 1.0
    if bound is not None:
        bound = (bound[0] * max(1.0, positive), bound[1] * max(1.0, positive))
    more = booster.more_alphas if kernel == _QUANTILE else ()
    found = Objective(
        name, model_name, tasks, start_rule, kernel, float(parameter), float(positive), bound, more,
        booster.lambdarank_score_normalization,
    )  # fmt: skip
    return found.by_formula(Formula(booster.loss, booster.hessian)) if booster.loss else found


def unusual_loss(name: str, booster: Booster) -> list[str]:
    """Return a warning of a formula that holds the probabilities of two classes apart from 0 and 1.

    A squared error of the label is least at margins of 0 and 1: probabilities of 0.5 and 0.73.
    """
    if not booster.loss or name not in _KINDS or _KINDS[name][0] != _LOGISTIC:
        return []
    sure = np.array([math.log(3.0), -math.log(3.0)])
    g, _ = Formula(booster.loss).gradients(sure, np.array([1.0, 0.0]))
    if not (g[0] > 0.0 or g[1] < 0.0):
        return []
    return [
        f"[booster] loss: margin is the log odds in a job of {name}, and this loss grows "
        "before a label of 1 is predicted with 0.75 or one of 0 with 0.25: predictions stay near "
        '0.5. Write it of 1 / (1 + exp(-margin)), or set task = "regression"'
    ]


@kernel("boosting/tables", "logistic")
def _logistic(margins, y, weight, positive, g, h):
    one, least = np.float32(1.0), np.float32(1e-16)
    p = one / (np.exp(np.minimum(-margins, np.float32(88.7))) + one + least)
    w = np.where(y == one, positive, one) * (weight if weight.shape[0] else one)
    g[:], h[:] = (p - y) * w, np.maximum(p * (one - p), least) * w


@kernel("boosting/tables", "softmax")
def _softmax(margins, y, weight, factor, g, h):
    e = np.exp(margins - margins.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    w = weight[:, None] if weight.shape[0] else np.float32(1.0)
    own = np.arange(margins.shape[1]) == y[:, None]
    h[:] = np.maximum(factor * p * (np.float32(1.0) - p) * w, np.float32(1e-16))
    g[:] = (p - own) * w


@kernel("boosting/tables", "regression")
def _regression(kind, a, margins, y, weight, g, h):
    s, label = margins.astype(np.float64), y.astype(np.float64)
    r = s - label
    grad: Any = r
    hess: Any = 1.0
    if kind == _LSE:
        grad, hess = 2.0 * r, 2.0
    elif kind == _ABSOLUTE:
        grad = np.sign(r)
    elif kind == _QUANTILE:
        grad = np.where(r >= 0, 1.0 - a, -a)
    elif kind == _LAE:
        grad = np.where(np.abs(r) < 1e-8, 0.0, np.sign(r))
    elif kind == _HUBER:
        root = np.sqrt(1.0 + (r / a) * (r / a))
        grad, hess = r / root, 1.0 / (root * root * root)
    elif kind == _FAIR:
        grad, hess = a * r / (np.abs(r) + a), (a / (np.abs(r) + a)) ** 2
    elif kind == _LOG_COSH:
        grad = np.tanh(r)
        hess = 1.0 - grad * grad
    elif kind == _TWEEDIE:
        low, high = np.exp((1.0 - a) * s), np.exp((2.0 - a) * s)
        grad = high - label * low
        hess = (2.0 - a) * high - label * (1.0 - a) * low
    elif kind == _POISSON:
        grad, hess = np.exp(s) - label, np.exp(s + a)
    elif kind == _GAMMA:
        hess = label * np.exp(-s)
        grad = 1.0 - hess
    elif kind == _SQUARED_LOG:
        p = np.maximum(margins, np.float32(-1.0 + 1e-6))
        more = (np.log1p(one).astype(np.float32) for one in (p.astype(np.float64), label))
        more, shifted = np.subtract(*more), p + np.float32(1.0)
        grad = more / shifted
        hess = np.maximum((np.float32(1.0) - more) / (shifted * shifted), np.float32(1e-6))
    elif kind != _SQUARED:
        sign = 2.0 * label - 1.0
        inside = s * sign < 1.0
        grad, hess = np.where(inside, -sign, 0.0), np.where(inside, 1.0, 0.0)
    w = weight if weight.shape[0] else np.float32(1.0)
    g[:], h[:] = np.float32(grad) * w, np.float32(hess) * w


def _log_cosh(s: Floats, y: Floats, _: float) -> Floats:
    r = np.abs(s - y)
    return np.asarray(r + np.log1p(np.exp(-2.0 * r)) - math.log(2.0))


def _fair(s: Floats, y: Floats, c: float) -> Floats:
    r = np.abs(s - y)
    return np.asarray(c * r - c * c * np.log1p(r / c))


def _tweedie(s: Floats, y: Floats, rho: float) -> Floats:
    return np.asarray(
        -y * np.exp((1.0 - rho) * s) / (1.0 - rho) + np.exp((2.0 - rho) * s) / (2.0 - rho)
    )


_LOSSES: dict[int, Callable[[Floats, Floats, float], Floats]] = {
    _LOGISTIC: lambda s, y, _: np.asarray(np.logaddexp(0.0, s) - y * s),
    _SQUARED: lambda s, y, _: np.asarray(0.5 * (s - y) ** 2),
    _LSE: lambda s, y, _: np.asarray((s - y) ** 2),
    _LAE: lambda s, y, _: np.abs(s - y),
    _HUBER: lambda s, y, d: np.asarray(d * d * (np.sqrt(1.0 + ((s - y) / d) ** 2) - 1.0)),
    _FAIR: _fair,
    _LOG_COSH: _log_cosh,
    _TWEEDIE: _tweedie,
    _POISSON: lambda s, y, _: np.asarray(np.exp(s) - y * s),
    _GAMMA: lambda s, y, _: np.asarray(s + y * np.exp(-s)),
    _SQUARED_LOG: lambda s, y, _: np.asarray(
        0.5 * (np.log(np.maximum(s + 1.0, 1e-6)) - np.log1p(y)) ** 2
    ),
    _HINGE: lambda s, y, _: np.maximum(0.0, 1.0 - s * (2.0 * y - 1.0)),
    _ABSOLUTE: lambda s, y, _: np.abs(s - y),
    _QUANTILE: lambda s, y, a: np.maximum(a * (y - s), (a - 1.0) * (y - s)),
}


_PARAMETERS = {
    "lambdarank_num_pair_per_sample": tuple(ranking.KINDS),
    "lambdarank_score_normalization": tuple(ranking.KINDS),
    "aft_loss_distribution": ("survival:aft",),
    "aft_loss_distribution_scale": ("survival:aft",),
    "huber_slope": ("reg:pseudohubererror", "huber"),
    "fair_c": ("fair",),
    "quantile_alpha": ("reg:quantileerror",),
    "more_alphas": ("reg:quantileerror",),
    "tweedie_variance_power": ("reg:tweedie", "tweedie"),
    "scale_pos_weight": ("binary:logistic", "binary:logitraw", "reg:logistic", "bce"),
}


def check_parameters(
    objective: str, booster: Booster, lossless: str = "histogram or secureboost"
) -> None:
    """Raise :class:`InvalidJob` for a parameter of another objective.

    Parameters
    ----------
    lossless : str
        What would take a loss that the job writes down; empty where this job does.
    """
    only_with(not lossless, lossless, "booster", booster, "loss", "hessian")
    only_with(booster.loss, "a loss", "booster", booster, "hessian")
    for name, of in _PARAMETERS.items():
        needed = f"an objective of {', '.join(of)}" + ", and no loss" * bool(booster.loss)
        only_with(objective in of and not booster.loss, needed, "booster", booster, name)
