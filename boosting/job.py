"""The tables of a job that are not a strategy's, and who must approve it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.failure_times import FailureTimes

_RUN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
MOST_WEIGHT = 2.0**64
"""Of a row; the most that is summed exactly under all losses."""
_LARGEST = 2.0**127
_DIGEST = re.compile(r"[0-9a-f]{64}")


_NOT_NATIVE = (
    "base_score", "device", "fair_c", "increasing", "decreasing", "interaction_constraints",
    "monotone_constraints", "more_alphas", "loss", "hessian",
)  # fmt: skip


OF_SCRIPTS = ("script", "script-high")
"""Metrics that are functions of each silo's script."""
ADAPTIVE = ("reg:absoluteerror", "reg:quantileerror")
"""Objectives whose leaves XGBoost takes from the middle of the rows' residuals."""
IN_CELLS = (*ADAPTIVE, "survival:cox")
"""Objectives of which a histogram job divides labels into cells of many rows."""
OF_SEVERAL_LABELS = (
    "reg:squarederror", "reg:pseudohubererror", "reg:logistic", "reg:gamma", "reg:squaredlogerror",
    "reg:tweedie", "count:poisson", "binary:logistic", "binary:logitraw", "binary:hinge",
)  # fmt: skip
"""Objectives whose rows may have several labels: gradients of each are those of one."""
ADAPTIVE_LEAF_ROWS = 10
"""Rows that such a leaf is made the mean of, where it has as many."""


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
    quantile_alpha: float = 0.5
    more_alphas: tuple[float, ...] = ()
    """Quantiles after the first, each an output of its own."""
    aft_loss_distribution: str = "normal"
    aft_loss_distribution_scale: float = 1.0
    lambdarank_num_pair_per_sample: int = 32
    """Rows of a query, the first by score, that rankings compare with all rows below them."""
    lambdarank_score_normalization: bool = True
    """Whether a pair counts less the further its scores are apart."""
    device: str = "cpu"
    """Where silos grow trees with stock XGBoost: ``cpu`` or ``cuda``."""
    increasing: tuple[str, ...] = ()
    """Features with which no prediction falls: monotone constraints by name."""
    decreasing: tuple[str, ...] = ()
    """Features with which no prediction rises."""
    interaction_constraints: tuple[tuple[Any, ...], ...] = ()
    """Groups of features that may divide nodes of one path: names, or places in a schema."""
    loss: str = ""
    """A loss of the job's own (:class:`~.formula.Formula`), under the objective's link."""
    hessian: str = ""
    """What takes the place of its second derivative."""

    def check(self) -> None:
        """Raise :class:`InvalidJob` for monotone constraints that contradict each other."""
        names = (*self.increasing, *self.decreasing)
        if names and self.monotone_constraints:
            raise InvalidJob(
                "[booster] monotone_constraints: expected none beside increasing and decreasing"
            )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidJob(f"[booster] increasing, decreasing: '{twice[0]}' is there twice")
        for number, group in enumerate(self.interaction_constraints):
            if not group or len(set(group)) < len(group):
                raise InvalidJob(
                    f"[booster] interaction_constraints[{number}]: expected features, none of them "
                    "twice"
                )

    @property
    def draws(self) -> bool:
        """Whether rows or columns are drawn for a tree."""
        shares = (
            self.subsample, self.colsample_bytree, self.colsample_bylevel, self.colsample_bynode,
        )  # fmt: skip
        return any(share != 1.0 for share in shares)

    @property
    def quantiles(self) -> tuple[float, ...]:
        """The quantiles that ``reg:quantileerror`` predicts; of another objective none."""
        if self.objective != "reg:quantileerror":
            return ()
        return (self.quantile_alpha, *self.more_alphas)

    @property
    def failure_times(self) -> FailureTimes:
        """Distribution of the times that ``survival:aft`` predicts."""
        return FailureTimes(self.aft_loss_distribution, self.aft_loss_distribution_scale)

    def native(self) -> dict[str, Any]:
        """Return the parameters that differ from XGBoost's defaults, under its names.

        ``base_score`` and ``num_class`` are the strategy's to set, ``device`` is of a silo's own
        trees alone; ``fair_c``, ``increasing`` and ``decreasing`` are ours.
        """
        default = Booster()
        given = {
            f.name.rstrip("_"): getattr(self, f.name)
            for f in fields(self)
            if f.name not in _NOT_NATIVE and getattr(self, f.name) != getattr(default, f.name)
        }
        if self.quantiles:  # XGBoost has no default
            given["quantile_alpha"] = [*self.quantiles] if self.more_alphas else self.quantile_alpha
        if self.monotone_constraints:
            given["monotone_constraints"] = self.monotone_constraints
        if self.interaction_constraints:
            given["interaction_constraints"] = str([[*one] for one in self.interaction_constraints])
        return given


class DatePart(Enum):
    """What a feature takes of a date: the value ends the feature's name."""

    YEAR = "year"
    MONTH = "month"
    """From 1."""
    WEEKDAY = "weekday"
    """Monday is 0."""
    DAYS_SINCE = "days_since"
    """Days since 1970-01-01, rounded down."""


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """How columns of a silo's table become features; every silo does the same.

    Columns that are metadata or labels by their names are never made features by these rules, so
    that what a silo keeps out by a name stays out.
    """

    dates: tuple[tuple[str, tuple[DatePart, ...]], ...] = ()
    """Columns of dates, each in place of the features ``COLUMN_PART``."""
    drop: tuple[str, ...] = ()
    """Columns that are no features."""
    categorical: tuple[str, ...] = ()
    """Columns whose numbers are names of categories."""
    rename: tuple[tuple[str, str], ...] = ()
    """Another name of a column, and its name in the job: all other rules use the latter."""
    positive: str = ""
    """Class of a binary label whose probability is predicted; empty for the last by name."""
    missing_label: str = ""
    """``drop`` leaves rows without a label out; empty refuses a table that has some."""
    weight: str = ""
    """Column of what each row counts; empty for rows that all count the same."""
    class_weight: tuple[tuple[str, float], ...] = ()
    """Classes by name, and what their rows count beside that; other classes count 1."""
    ranges: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """Least and largest value of numeric columns, known without looking at rows; of a regression
    the label may have one, too."""
    levels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Categories of columns, known without looking at rows: any other value counts as missing."""
    missing: float | None = None
    """Number that stands for a missing value in columns of numbers; None where none does."""
    more_labels: tuple[str, ...] = ()
    """Columns of the labels after the first, each an output of its own, in this order."""

    label_upper: str = ""
    """Column of the latest time of the event of survival, where the label is the earliest: the same
    of an event that was seen, missing or infinite of one that was not."""
    event: str = ""
    """Column of 0 and 1 in place of that: whether the event was seen at the label's time."""
    qid: str = ""
    """Column of the query that a row of a ranking belongs to; rows of a query lie together."""

    @property
    def of_label(self) -> tuple[str, ...]:
        """Columns that complete the label, and so are no features."""
        return (*self.beside_label, *self.more_labels)

    @property
    def beside_label(self) -> tuple[str, ...]:
        """The column without which a label says nothing: of survival's event, or of the query."""
        return tuple(filter(None, [self.label_upper, self.event, self.qid]))

    @property
    def beside_key(self) -> str:
        """The key of that column."""
        return "qid" if self.qid else "label_upper" if self.label_upper else "event"

    @property
    def weighs(self) -> bool:
        """Whether rows count differently."""
        return bool(self.weight or self.class_weight)

    @property
    def heaviest(self) -> float:
        """What a row counts at most, as far as the job says."""
        by_class = max([1.0, *dict(self.class_weight).values()])
        return by_class * MOST_WEIGHT if self.weight else by_class

    def date_features(self, name: str) -> tuple[str, ...]:
        """Return the features that a column of dates becomes; none for another column."""
        return tuple(f"{name}_{part.value}" for part in dict(self.dates).get(name, ()))

    def n_features(self, n_columns: int) -> int:
        """Return about how many features that many columns become."""
        grown = sum(len(parts) - 1 for _, parts in self.dates)
        return max(n_columns + grown - len(self.drop), 0)

    def check(self, label: str, features: tuple[str, ...], task: str) -> None:
        """Raise :class:`InvalidJob` for rules that contradict each other or the job.

        Parameters
        ----------
        features : tuple of str
            Those that the job names.
        task : str
            The value of its :class:`~hedgerow.boosting.dataset.Task`.
        """
        if self.positive and task != "binary":
            raise _wrong("positive", 'expected a job with task = "binary"')
        if self.missing_label not in ("", "drop"):
            raise _wrong("missing_label", f"expected 'drop' or nothing, not {self.missing_label!r}")
        if self.missing is not None and not abs(self.missing) < _LARGEST:
            raise _wrong("missing", f"expected a finite number of float32, not {self.missing:g}")
        self._check_beside(task)
        self._check_labels(label, features, task)
        if self.class_weight and task in ("regression", "survival", "ranking"):
            raise _wrong("class_weight", f"expected a job with classes, not a {task}")
        for name, value in self.class_weight:
            if not 2.0**-32 < value < 2.0**32:
                raise _wrong(
                    "class_weight",
                    f"'{name}': expected a number between 2^-32 and 2^32, not {value:g}",
                )
        for name, ends in self.ranges:
            if len(ends) != 2 or not -_LARGEST <= ends[0] < ends[1] <= _LARGEST:
                raise _wrong("ranges", f"'{name}': expected two numbers of float32, ascending")
        for name, names in self.levels:
            if len(names) < 2 or len(set(names)) < len(names):
                raise _wrong("levels", f"'{name}': expected two categories or more, none twice")
            if name in dict(self.ranges):
                raise _wrong("levels", f"'{name}' is in [columns.ranges] already")
        targets, labels = {new for _, new in self.rename}, (label, *self.more_labels)
        for old, new in self.rename:
            if old == new or old in targets:
                raise _wrong("rename", f"'{old}' is a column's new name, too")
            for name in (old, new):
                # The label may have any name, but nothing else that is kept out becomes a feature.
                if name.startswith("_") or (new not in labels and not is_feature(name, "")):
                    raise _wrong("rename", f"'{name}' is never a feature")
            if old in labels:
                raise _wrong("rename", f"'{old}' is the label: give its new name as label")
        used: dict[str, str] = {}
        for key, names in self._features():
            for name in names:
                if name == label if name in self.beside_label else not is_feature(name, label):
                    why = "is the label, or kept out by its name" if key == "weight" else ""
                    why = "is the label, too" if name in self.beside_label else why
                    raise _wrong(key, f"'{name}' {why or 'is no feature'}")
                if name in dict(self.rename):
                    raise _wrong(key, f"'{name}' is renamed: give '{dict(self.rename)[name]}'")
                if name in used:
                    raise _wrong(key, f"'{name}' is in [columns] {used[name]} already")
                used[name] = key
        for name, parts in self.dates:
            if not parts or len(set(parts)) < len(parts):
                raise _wrong("dates", f"'{name}' needs one part at least, and none of them twice")
        for name in features:
            if name in self.drop:
                raise _wrong("drop", f"'{name}' is among the job's features")
            if name == self.weight:
                raise _wrong("weight", f"'{name}' is among the job's features")
            if name in self.beside_label:
                raise _wrong(self.beside_key, f"'{name}' is among the job's features")
            if own := self.date_features(name):
                raise InvalidJob(f"features: '{name}' becomes {', '.join(own)}: name those")

    def _check_beside(self, task: str) -> None:
        """Refuse columns that another task has, and the lack of those that this one has."""
        if task in ("survival", "ranking") and self.more_labels:
            raise _wrong("label", f"expected one with {task}, received several")
        if self.qid and task != "ranking":
            raise _wrong("qid", 'expected a job with task = "ranking"')
        if (self.label_upper or self.event) and task != "survival":
            raise _wrong(self.beside_key, 'expected a job with task = "survival"')
        if task == "survival" and len(self.beside_label) != 1:
            raise _wrong("label_upper, event", "survival needs one of them, and not both")
        if task == "ranking" and not self.qid:
            raise _wrong("qid", "ranking needs the column of the query that a row belongs to")
        if task == "ranking" and self.weight:
            raise _wrong("weight", "rows of a ranking have none, for pairs of them are compared")

    def _check_labels(self, label: str, features: tuple[str, ...], task: str) -> None:
        """Refuse what several labels cannot have."""
        if not self.more_labels:
            return
        labels = (label, *self.more_labels)
        if task not in ("binary", "regression"):
            kind = "multi-class" if task == "multiclass" else task
            raise InvalidJob(
                f"label: expected one column of a {kind} job, received {len(labels)}; "
                "submit a job for each"
            )
        for name in labels:
            if not name or labels.count(name) > 1:
                raise InvalidJob(f"label: expected names of columns, none twice, received {name!r}")
            if name in features:
                raise InvalidJob(f"label: '{name}' is among the job's features")
            for key, names in (*self._features(), ("ranges", dict(self.ranges)),
                               ("levels", dict(self.levels))):  # fmt: skip
                if name in names:
                    raise _wrong(key, f"'{name}' is a label")
        for key in ("positive", "class_weight"):
            if getattr(self, key):
                raise _wrong(key, "expected a job with one label")

    def _features(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the rules with the features that they are about."""
        yield "dates", tuple(name for name, _ in self.dates)
        yield "drop", self.drop
        yield "categorical", self.categorical
        yield "weight", tuple(filter(None, [self.weight]))
        yield "label_upper", tuple(filter(None, [self.label_upper]))
        yield "event", tuple(filter(None, [self.event]))
        yield "qid", tuple(filter(None, [self.qid]))


@dataclass(frozen=True, slots=True)
class WarmStart:
    """The model of an earlier run, from which a job goes on; bound into the signed job."""

    run: str
    """Identifier of its job, or its name in the coordinator's configuration."""
    model: str
    """SHA-256 of its ``model.ubj`` (of FedGA ``structures.json``), and the digest of the schema it
    was trained on, in hex."""
    schema: str
    """SHA-256 of its ``model.ubj`` (of FedGA ``structures.json``), and the digest of the schema it
    was trained on, in hex."""
    rounds_before: int = 0
    """Rounds of it that are kept, after which what is drawn for a round goes on; 0 for all, and to
    draw from the first again."""

    def check(self) -> None:
        """Raise :class:`InvalidJob` for names and digests that there cannot be."""
        if not _RUN.fullmatch(self.run):
            raise InvalidJob(
                "[warm_start] run: expected a job's identifier, or a name of letters, digits and "
                f"dashes, received {self.run[:80]!r}"
            )
        for key, digest in (("model", self.model), ("schema", self.schema)):
            if not _DIGEST.fullmatch(digest):
                raise InvalidJob(
                    f"[warm_start] {key}: expected SHA-256 as 64 digits of hex, received "
                    f"{digest[:80]!r}; --model RUN, in Python model=, takes it from a run folder"
                )


MOST_APPROVERS = 64
_APPROVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Approvals:
    """How many of which people must sign something; nobody where there are no names."""

    approvers: tuple[str, ...] = ()
    """Names in their certificates, sorted."""
    min_approvals: int = 0
    """How many of them; 0 stands for all."""

    @property
    def least(self) -> int:
        """How many must sign."""
        return self.min_approvals or len(self.approvers)

    def missing(self, signed: Collection[str]) -> int:
        """Return how many more must sign, where these have."""
        return max(self.least - len(set(signed) & set(self.approvers)), 0)

    def described(self, signed: Collection[str]) -> str:
        """Return who has signed and who still may, in words."""
        given = [name for name in self.approvers if name in signed]
        others = ", ".join(name for name in self.approvers if name not in signed)
        have = (
            f"{', '.join(given)} {'have' if len(given) > 1 else 'has'}" if given else "nobody has"
        )
        missing = self.missing(signed)
        return f"{have} signed" + (f", {missing} more of {others} must" if missing else "")

    def without(self, name: str) -> Approvals:
        """Return the same without one name, whose signature does not count; it may be too few."""
        others = tuple(one for one in self.approvers if one != name)
        return Approvals(others, self.least)

    def check_operator(self, operator: str, table: str = "") -> None:
        """Raise :class:`InvalidJob` where who submits a job would have to approve it, too."""
        if self.without(operator).missing(self.approvers):
            where = f"[{table}] " if table else ""
            raise InvalidJob(
                f"{where}approvers: expected {self.least} other than {operator}, who submits the "
                f"job, received {', '.join(self.approvers)}"
            )

    def check(self, table: str = "") -> None:
        """Raise :class:`InvalidJob` for names and numbers that there cannot be."""
        where = f"[{table}] " if table else ""
        wrong = [name for name in self.approvers if not _APPROVER.fullmatch(name)]
        if wrong or len(self.approvers) > MOST_APPROVERS:
            raise InvalidJob(
                f"{where}approvers: expected at most {MOST_APPROVERS} names as certificates have "
                f"them, received {wrong[0][:80] if wrong else len(self.approvers)!r}"
            )
        if self.min_approvals > len(self.approvers):
            raise InvalidJob(
                f"{where}min_approvals: expected at most {len(self.approvers)}, the number of "
                f"approvers, received {self.min_approvals}"
            )


@dataclass(frozen=True, slots=True)
class ReleaseAudit:
    """Whose signed audit, within which limits, releases a job's model: ``[audit]``."""

    approvals: Approvals
    limits: tuple[tuple[str, float], ...] = ()
    """By name, sorted; one that ends in ``_max`` bounds from above, others from below."""

    def without(self, name: str) -> ReleaseAudit:
        """Return the same without one approver, whose signature does not count."""
        return replace(self, approvals=self.approvals.without(name))

    def check(self) -> None:
        """Raise :class:`InvalidJob` where nobody may release the model, or a limit is none."""
        self.approvals.check("audit")
        if not self.approvals.approvers:
            raise InvalidJob(
                "[audit] approvers: expected the names of those whose signed audit releases the "
                "model, received none; limits for an audit alone are given by its --limits, "
                "in Python limits="
            )
        for name, value in self.limits:
            if not 0.0 <= value <= 1.0:
                raise InvalidJob(f"[audit] {name}: expected 0 to 1, received {value:g}")


def category_name(text: str) -> str:
    """Return the name of a category that a text stands for: 007, 7 and 7.0 are one."""
    whole = re.fullmatch(r"\s*([+-]?)0*(\d+?)(\.0*)?\s*", text, re.ASCII)
    return text if whole is None else whole[1].replace("+", "") * (whole[2] != "0") + whole[2]


def is_feature(name: str, label: str) -> bool:
    """Return whether a column is a feature, by its name alone.

    One without a name is none: CSV files that pandas or R write begin with the rows' numbers.
    """
    return not (name.startswith(("_", "label_")) or name in ("", "label", label))


def _wrong(key: str, why: str) -> InvalidJob:
    return InvalidJob(f"[columns] {key}: {why}")
