"""A silo's table: its schema, its features and class labels as float32, other labels as float64."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any
from unicodedata import normalize
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError, DataWarning, SchemaMismatch
from hedgerow.boosting.job import category_name
from hedgerow.boosting.payloads import LATER
from hedgerow.boosting.spelling import renamed

_MOST_DENSE = 1 << 32
_ROWS_AT_ONCE = 2048  # of a table that is turned: the cache holds them
Labels = NDArray[np.float32] | NDArray[np.float64]
RowGradients = Callable[[int, NDArray[np.float32]], tuple[Any, Any]]
"""Of a round, from 0, and margins of shape (n_samples, n_outputs), float32, g and h of that
shape."""
RowMetric = Callable[[NDArray[np.float64]], float]
"""Of the margins of all rows, a row's beside each other, float64, their score."""


SIGNS = ("-1", "1")
TRUTH = ("false", "true")
"""Names of two classes whose labels are -1 and 1, and of truth values, in order."""


class Task(Enum):
    """Kind of prediction."""

    BINARY = "binary"
    MULTICLASS = "multiclass"
    REGRESSION = "regression"
    SURVIVAL = "survival"
    """A time that is known to lie between two bounds."""
    RANKING = "ranking"
    """An order of the rows of a query."""

    @property
    def of_classes(self) -> bool:
        """Whether classes are predicted, not numbers."""
        return self in (Task.BINARY, Task.MULTICLASS)


@dataclass(frozen=True, slots=True)
class Feature:
    """A column: its name, and its category list when it is categorical (codes are positions).

    A column without any value has an empty list, which agrees with either type in other silos.
    """

    name: str
    categories: tuple[str, ...] | None = None

    @property
    def is_categorical(self) -> bool:
        """Whether values are codes into ``categories``."""
        return self.categories is not None


def unnamed(n: int) -> tuple[Feature, ...]:
    """Return ``n`` numeric features, for plans from a number of columns alone."""
    return tuple(Feature(f"column {k}") for k in range(max(n, 0)))


@dataclass(frozen=True)
class Schema:
    """The facts of a table that all silos of a horizontal job must agree on."""

    features: tuple[Feature, ...]
    """Ordered."""
    label: str
    """Name of the label column; empty for a passive party."""
    task: Task
    n_classes: int
    """2 for binary, 0 for regression, survival and ranking; for multiclass the size of the global
    class list, and 0 at a silo without rows."""
    classes: tuple[str, ...] = ()
    """Names of the classes, by index, where labels are text; empty where they are numbers."""
    numbered: bool = False
    """Whether the names stand for numbers or truth values, as the silos' tables have them."""
    more_labels: tuple[str, ...] = field(default=(), metadata={LATER: True})
    """Names of the label columns after the first, each an output of its own."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all label columns, in the order of the outputs."""
        return (self.label, *self.more_labels)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Feature names in order."""
        return tuple(feature.name for feature in self.features)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.features)

    @cached_property
    def n_categories(self) -> tuple[int, ...]:
        """Size of each feature's category list, 0 where it is numeric."""
        return tuple(len(feature.categories or ()) for feature in self.features)

    @property
    def n_outputs(self) -> int:
        """Margins per row: the class count for multiclass, else one a label."""
        return self.n_classes if self.task is Task.MULTICLASS else 1 + len(self.more_labels)

    @property
    def n_scored(self) -> int:
        """Outputs that metrics tell apart: those of several labels are rows alike."""
        return 1 if self.more_labels else self.n_outputs

    @property
    def feature_types(self) -> list[str]:
        """XGBoost's type letters: ``"c"`` for categorical, ``"q"`` for numeric."""
        return ["c" if feature.is_categorical else "q" for feature in self.features]

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON form; equal digests mean equal schemas."""
        found = asdict(self) | {"task": self.task.value}
        if not self.numbered:
            del found["numbered"]  # as of earlier versions
        if not self.more_labels:
            del found["more_labels"]
        text = json.dumps(found, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Columns:
    """Features that are read one at a time, whenever they are needed, and not kept."""

    n_samples: int
    readers: tuple[Callable[[], NDArray[np.float32]], ...]
    """Each returns a feature's values, ndarray of shape (n_samples,), float32; it may raise
    DataError. Several threads may read at once."""
    n_stored: int | None = None
    """At most how many values of all are neither missing, nor 0 that is not listed; None where that
    is not known."""
    listed_in: str = ""
    """Name of the file where it lists only values that are not 0, so that its size says nothing
    about that of a dense table; else empty."""

    @cached_property
    def table(self) -> NDArray[np.float32]:
        """All features, shape (n_samples, n_features), C order; kept once it is asked for.

        Raises DataError where a file that lists values would be too large.
        """
        if self.listed_in:
            check_dense(self.listed_in, self.n_samples, len(self.readers))
        X = np.empty((self.n_samples, len(self.readers)), dtype=np.float32)
        for column, read in enumerate(self.readers):
            X[:, column] = read()
        return X


def check_dense(name: str, n_rows: int, n_columns: int) -> None:
    """Refuse to make a file of listed values a dense table with very many values."""
    if n_rows * n_columns > _MOST_DENSE:
        raise DataError(
            f"{name} is too large for a dense table: expected at most {_MOST_DENSE} values, "
            f"received more in {n_columns} columns"
        )


def columns_of(X: NDArray[np.float32] | Columns) -> Columns:
    """Return a table as columns."""
    if isinstance(X, Columns):
        return X
    readers = [lambda j=j: np.ascontiguousarray(X[:, j]) for j in range(X.shape[1])]
    return Columns(X.shape[0], tuple(readers))


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows of one party."""

    schema: Schema
    features: NDArray[np.float32] | Columns
    """Of shape (n_samples, n_features), float32, or Columns. C order. Missing is NaN; a categorical
    value is its code, an unknown category is NaN."""
    y: Labels | None = None
    """Of shape (n_samples,), float32 or float64, or None. Class index, which float32 holds exactly,
    or number; of several labels of shape (n_samples, n_labels); of survival of shape (n_samples,
    2): earliest and latest time of the event, which is infinite where it is not known; of ranking
    of that shape, too: relevance, and the query's number (:mod:`~hedgerow.boosting.queries`). None
    where a party has no labels."""
    weight: NDArray[np.float64] | None = None
    """Of shape (n_samples,), float64, or None."""
    ids: NDArray[np.object_] | None = None
    """Of shape (n_samples,), object (str), or None. Row identifiers of a vertical party."""
    sources: tuple[str, ...] = ()
    """The table's own names of the columns that features, weights and base margins are made of, as
    it was read."""
    named: tuple[str, ...] = ()
    """Those of them whose numbers became names of categories."""
    base_margin: NDArray[np.float32] | None = None
    """Of shape (n_samples, n_outputs), float32, or None. Where the margins of rows begin, in place
    of the base score."""
    digest: str = ""
    """By which the table that was read is known again; empty where nobody asks."""
    unlabelled: int = 0
    """Rows of the table that were left out since they have no label."""
    gradients: RowGradients | None = None
    """Of all rows, where a script computes them."""
    metric: RowMetric | None = None
    """Of all rows, where a script scores them."""
    table: Any = None
    """What it was read from, until a silo takes part: rows that are left out or held back, too."""

    def __post_init__(self) -> None:
        if self.y is not None and self.schema.task.of_classes:
            object.__setattr__(self, "y", self.y.astype(np.float32, copy=False))

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        if isinstance(self.features, Columns):
            return self.features.n_samples
        return int(self.features.shape[0])

    @property
    def X(self) -> NDArray[np.float32]:  # noqa: N802
        """All features in memory, shape (n_samples, n_features), float32, C order."""
        return self.features.table if isinstance(self.features, Columns) else self.features

    @property
    def columns(self) -> Columns:
        """The features one at a time."""
        return columns_of(self.features)

    def by_column(self, features: Sequence[int]) -> list[NDArray[np.float32]]:
        """Return the values of some features, each contiguous, shape (n_samples,)."""
        if isinstance(self.features, Columns):
            return [np.ascontiguousarray(self.features.readers[j]()) for j in features]
        found = np.empty((len(features), self.n_samples), np.float32)
        every = [*features] == [*range(self.features.shape[1])]
        at = slice(None) if every else features
        for first in range(0, self.n_samples, _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            found[:, rows] = self.features[rows].T[at]
        return list(found)

    @property
    def stored(self) -> float:
        """At most which share of the values is stored, 1 where that is not known."""
        own = self.features.n_stored if isinstance(self.features, Columns) else None
        n_values = self.n_samples * self.schema.n_features
        return 1.0 if own is None else min(1.0, own / max(n_values, 1))

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows; such a silo is skipped."""
        return self.n_samples == 0

    @property
    def labels(self) -> NDArray[np.float64]:
        """The labels in float64; only for a party that has them."""
        return self.held_labels.astype(np.float64, copy=False)

    @property
    def numbers(self) -> NDArray[np.float64]:
        """The labels, shape (n_samples,), float64; of survival earliest times, of ranks grades."""
        return self.labels if self.labels.ndim == 1 else self.labels[:, 0]

    @property
    def held_labels(self) -> Labels:
        """The labels as they are held; only for a party that has them."""
        assert self.y is not None, "expected a party with labels"
        return self.y

    def take(self, rows: NDArray[np.intp]) -> Dataset:
        """Return the rows at ``rows``, in that order."""
        features: NDArray[np.float32] | Columns
        if not rows.size:
            features = np.empty((0, self.schema.n_features), np.float32)
        elif isinstance(self.features, Columns):
            readers = [lambda read=read: read()[rows] for read in self.features.readers]
            features = Columns(rows.shape[0], tuple(readers), listed_in=self.features.listed_in)
        else:
            features = np.ascontiguousarray(self.features[rows])
        return Dataset(
            self.schema,
            features,
            None if self.y is None else self.y[rows],
            None if self.weight is None else self.weight[rows],
            None if self.ids is None else self.ids[rows],
            self.sources,
            self.named,
            base_margin=None if self.base_margin is None else self.base_margin[rows],
        )


def merge(schemas: Mapping[str, Schema], empty: Collection[str] = (), positive: str = "") -> Schema:
    """Return the schema that all silos of a horizontal job share.

    Names and types of the features, label and task must agree; the order is that of the first silo
    by name. Category lists and class lists are united and sorted as text, so that the result does
    not depend on the order of silos.

    Parameters
    ----------
    schemas : Mapping[str, Schema]
        By silo; at least one.
    empty : collection of str
        Silos without rows, whose labels have no kind.
    positive : str
        The class of a binary label that is the last one; the last as text where it is empty.

    Raises
    ------
    SchemaMismatch
        Names the silo, the silo it differs from, and the first difference; or all labels are of
        one class.
    """
    silos = sorted(schemas)
    reference = silos[0]
    first = schemas[reference]
    _compare_names(schemas, reference, first)
    if not first.features:
        raise SchemaMismatch(f"silo {reference}: expected at least one feature column")
    own = {silo: {f.name: f for f in schemas[silo].features} for silo in silos}
    features = tuple(
        Feature(name, _united({silo: own[silo][name] for silo in silos})) for name in first.names
    )
    for silo in silos[1:]:
        _compare_labels(silo, schemas[silo], reference, first)
    labelled = [silo for silo in silos if schemas[silo].n_classes and silo not in empty]
    classes = _united_classes(first, {silo: schemas[silo].classes for silo in labelled})
    if positive and len(classes) == 2:
        if positive not in classes:
            raise SchemaMismatch(
                f"[columns] positive: '{positive}' is no class of label '{first.label}', which has "
                + _listed(classes)
            )
        classes = tuple(sorted(classes, key=lambda name: (name == positive, name)))
    n_classes = max(len(classes), *(each.n_classes for each in schemas.values()))
    if not classes and first.task is Task.MULTICLASS:
        named = (
            max(_as_numbers(each.classes, first.task), default=-1) + 1 for each in schemas.values()
        )
        n_classes = max(n_classes, *named)
    if labelled and (len(classes) == 1 if first.task is Task.BINARY else n_classes == 1):
        raise SchemaMismatch(f"label '{first.label}': all silos have one class only, expected two")
    own_kind = (schemas[silo].numbered for silo in labelled if schemas[silo].classes)
    numbered = bool(classes) and all(own_kind)
    more = first.more_labels
    return Schema(features, first.label, first.task, n_classes, classes, numbered, more)


def _united_classes(schema: Schema, classes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the union of the silos' class lists, sorted; empty where labels are numbers."""
    label, union, before, task = f"label '{schema.label}'", set[str](), "", schema.task
    text = next((silo for silo, own in classes.items() if own and not _as_numbers(own, task)), "")
    for silo, own in classes.items():
        if text and not own:
            raise SchemaMismatch(
                f"silo {silo}: {label} has numbers, that of silo {text} the classes "
                + _listed(classes[text])
                + "; write them the same way in all tables"
                + (", or give [columns] positive, which reads both as text" * (task is Task.BINARY))
            )
        union.update(own)
        if schema.task is Task.BINARY and len(union) > 2:
            raise SchemaMismatch(
                f"silo {silo}: {label} has the classes {_listed(own)}, that of silo {before} "
                f"{_listed(classes[before])}; a binary job has two"
            )
        if not before or len(own) > len(classes[before]):
            before = silo
    numbers = {own in ((), TRUTH) for own in classes.values()}
    if task is Task.MULTICLASS and (not all(classes.values()) or (not text and len(numbers) > 1)):
        return ()  # a silo has class 0, so that the names of others are its numbers
    return tuple(sorted(union))


def _as_numbers(names: tuple[str, ...], task: Task) -> tuple[int, ...]:
    """Return the class numbers that names stand for, of labels that are numbers; else nothing."""
    if names == TRUTH or (task is Task.BINARY and names == SIGNS):
        return 0, 1
    if task is Task.BINARY:
        return ()
    whole = all(name.isascii() and name.isdigit() and name[0] != "0" for name in names)
    return tuple(map(int, names)) if whole else ()


def _listed(names: Collection[str]) -> str:
    """Return the first names of a list for a message."""
    shown = ", ".join(f"'{name}'" for name in sorted(names)[:10])
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def fits(silo: str, own: Schema, agreed: Schema) -> None:
    """Check that a silo's schema fits a job whose schema is already agreed on.

    A category that is not in the agreed list is allowed: its values count as missing.

    Raises
    ------
    SchemaMismatch
        Names the silo and the first difference.
    """
    _compare_names({silo: own}, "the job", agreed)
    found = {feature.name: feature for feature in own.features}
    for theirs in agreed.features:
        mine = found[theirs.name]
        if mine.categories == () or theirs.categories == ():
            continue
        if mine.is_categorical != theirs.is_categorical:
            raise _types_differ(silo, mine, "the job")
    _compare_labels(silo, own, "the job", agreed)
    alike = not agreed.classes and _as_numbers(own.classes, own.task)
    if not alike and not set(own.classes) <= set(agreed.classes):
        raise SchemaMismatch(
            f"silo {silo}: label '{own.label}' has the classes {_listed(own.classes)}, the job "
            + (_listed(agreed.classes) or "numbers")
        )
    if own.n_classes > agreed.n_classes:
        raise SchemaMismatch(
            f"silo {silo}: labels have {own.n_classes} classes, the job has {agreed.n_classes}"
        )


def recode(dataset: Dataset, agreed: Schema, where: str = "the table") -> Dataset:
    """Return a table under the agreed schema: columns by name, categories and classes recoded.

    Categories that are not in the agreed list become missing. Columns that are not in the agreed
    schema are left out.

    Raises
    ------
    SchemaMismatch
        A column is missing or of another type, or a label is of no agreed class.
    """
    own = {feature.name: position for position, feature in enumerate(dataset.schema.features)}
    columns = dataset.columns
    readers = []
    for feature in agreed.features:
        if feature.name not in own:
            raise SchemaMismatch(f"{where} has no column '{feature.name}'")
        mine = dataset.schema.features[own[feature.name]]
        read = columns.readers[own[feature.name]]
        blank = () in (mine.categories, feature.categories)
        if not blank and mine.is_categorical != feature.is_categorical:
            expected = "text" if feature.is_categorical else "numbers"
            if all(name.lstrip("-").isdigit() for name in feature.categories or ("",)):
                expected += "; [columns] categorical reads whole numbers as text"
            raise SchemaMismatch(f"{where}: column '{feature.name}': expected {expected}")
        readers.append(_recoder(read, mine.categories, feature.categories))
    features: NDArray[np.float32] | Columns = dataset.features
    if agreed.features != dataset.schema.features:
        features = Columns(dataset.n_samples, tuple(readers), listed_in=columns.listed_in)
        if not isinstance(dataset.features, Columns):
            features = features.table
    y = relabelled(dataset, agreed, where)
    return Dataset(
        agreed, features, y, dataset.weight, dataset.ids, base_margin=dataset.base_margin,
        gradients=dataset.gradients, metric=dataset.metric,
    )  # fmt: skip


def class_weights(
    agreed: Schema, given: Collection[tuple[str, float]]
) -> NDArray[np.float64] | None:
    """Return what rows of each class count, shape (n_classes,); None where nothing is given.

    Raises
    ------
    SchemaMismatch
        A name is that of no class on which the silos agreed.
    """
    names = agreed.classes or tuple(map(str, range(agreed.n_classes)))
    found: dict[str, float] = {}
    for told, value in given:
        name = told if told in names else category_name(told)
        if name not in names or name in found:
            wrong = "no class" if name not in names else "named twice as a class"
            raise SchemaMismatch(
                f"[columns] class_weight: '{told}' is {wrong} of label '{agreed.label}', which "
                f"has {_listed(names)}"
            )
        found[name] = value
    return np.array([found.get(name, 1.0) for name in names]) if given else None


def weighed(dataset: Dataset, given: Collection[tuple[str, float]]) -> Dataset:
    """Return rows under the agreed schema that count what their class counts, too."""
    by_class = class_weights(dataset.schema, given)
    if by_class is None or dataset.y is None:
        return dataset
    own = by_class[dataset.y.astype(np.intp)]
    return replace(dataset, weight=own if dataset.weight is None else dataset.weight * own)


def relabelled(dataset: Dataset, agreed: Schema, where: str = "the table") -> Labels | None:
    """Return labels under the agreed list of classes, None where there are none.

    Raises
    ------
    SchemaMismatch
        A label is of no agreed class.
    """
    y, label = dataset.y, f"{where}: label column '{agreed.label}'"
    if y is not None and dataset.schema.classes != agreed.classes:
        own_classes = dataset.schema.classes
        if not own_classes and agreed.classes not in (SIGNS, TRUTH):
            numbers = _as_numbers(agreed.classes, agreed.task)
            if not numbers and y.size:
                raise SchemaMismatch(
                    f"{label}: expected the classes {_listed(agreed.classes)}, received numbers"
                )
            own_classes = tuple(map(str, range(max(numbers, default=0) + 1)))
            y = np.where(y < len(own_classes), y, np.nan)
        numbers = _as_numbers(own_classes, agreed.task)
        if agreed.classes or not numbers:
            if own_classes:
                y = _recoded(y, own_classes, agreed.classes)
        elif agreed.task is Task.MULTICLASS:
            y = np.asarray(numbers, np.float64)[y.astype(np.intp)]
        if np.isnan(y).any():
            raise SchemaMismatch(
                f"{label}: some labels are not in the job's class list: "
                + (_listed(agreed.classes) or "they are numbers there")
            )
    if y is not None and y.size and agreed.task is Task.MULTICLASS and y.max() >= agreed.n_classes:
        raise SchemaMismatch(
            f"{label}: some labels are not below the job's number of classes, {agreed.n_classes}"
        )
    return y


def to_score(dataset: Dataset, agreed: Schema, where: str = "the table") -> Dataset:
    """Return what :func:`recode` does of rows to score; warns of categories that no silo had.

    A column that is spelt otherwise than in training would else score as if it were empty.
    """
    own = dict(zip(dataset.schema.names, dataset.schema.features, strict=True))
    readers = dict(zip(dataset.schema.names, dataset.columns.readers, strict=True))
    for feature in agreed.features:
        mine = own.get(feature.name, feature).categories or ()
        new = [code for code, name in enumerate(mine) if name not in (feature.categories or mine)]
        if new:
            rows = np.count_nonzero(np.isin(readers[feature.name](), new))
            warn(
                f"{where}: column '{feature.name}': {rows} of {dataset.n_samples} rows have a "
                "category that the model does not know, taken as missing",
                DataWarning,
                stacklevel=2,
            )
    return recode(dataset, agreed, where)


def stacked(tables: Iterable[Dataset], agreed: Schema) -> Dataset:
    """Return the rows of several silos as one table under the agreed schema.

    Weights and base margins are kept where all of them have any.
    """
    own = [recode(table, agreed) for table in tables]
    labels = [table.labels for table in own]
    if agreed.task is Task.RANKING:  # each silo numbers its queries from 0, and they are others
        labels = [np.stack([y[:, 0], y[:, 1] + k * 2.0**32], 1) for k, y in enumerate(labels)]
    weights = [table.weight for table in own if table.weight is not None]
    starts = [table.base_margin for table in own if table.base_margin is not None]
    return Dataset(
        agreed,
        np.concatenate([table.X for table in own]),
        np.concatenate(labels),
        np.concatenate(weights) if len(weights) == len(own) else None,
        base_margin=np.concatenate(starts) if len(starts) == len(own) else None,
    )


def _recoder(
    read: Callable[[], NDArray[np.float32]],
    old: tuple[str, ...] | None,
    new: tuple[str, ...] | None,
) -> Callable[[], NDArray[np.float32]]:
    """Return a reader of a feature's values under the agreed category list."""
    if old is None or new is None or old == new or not old:
        return read  # without any category all values are missing
    return lambda: _recoded(read(), old, new).astype(np.float32)


def _recoded(
    codes: NDArray[np.floating], old: tuple[str, ...], new: tuple[str, ...]
) -> NDArray[np.float64]:
    """Return codes into ``new`` for codes into ``old``; NaN stays NaN and marks the unknown."""
    position = {name: code for code, name in enumerate(new)}
    table = np.array([position.get(name, np.nan) for name in old] + [np.nan])
    return table[np.where(np.isnan(codes), len(old), codes).astype(np.intp)]


def _compare_names(schemas: Mapping[str, Schema], reference: str, other: Schema) -> None:
    """Raise where silos have other columns than ``other``, which is that of ``reference``."""
    whose = reference if reference == "the job" else f"silo {reference}"
    told: list[str] = []
    rename: dict[str, str] = {}
    for silo in sorted(schemas):
        own = schemas[silo]
        here, there = set(own.names), set(other.names)
        lacking = [name for name in other.names if name not in here]
        extra = [name for name in own.names if name not in there]
        mine, theirs = (
            {one.name: one.categories for one in schema.features if one.name in names}
            for schema, names in ((own, extra), (other, lacking))
        )
        meant = renamed(mine, theirs)
        near = {name: theirs for name, (theirs, _) in meant.items()}
        rename |= near
        found = [
            f"its column '{name}' " + (f"may be '{theirs}' at {whose}, by {why}" if why
                                       else f"is '{theirs}' at {whose}")
            for name, (theirs, why) in meant.items()
        ]  # fmt: skip
        lacking = [name for name in lacking if name not in near.values()]
        if lacking:
            found.append(f"it has no column '{lacking[0]}', which {whose} has")
        elif extra := [name for name in extra if name not in near]:
            found.append(f"its column '{extra[0]}' is not a column of {whose}")
        if found:
            counts = f"({own.n_features} columns against {other.n_features})"
            told.append(f"silo {silo}: {', '.join(found)} {counts}")
    if told:
        # Names that look the same are told by the numbers of their letters, as TOML reads them.
        same = any(normalize("NFC", a) == normalize("NFC", b) for a, b in rename.items())
        pairs = json.dumps(rename, ensure_ascii=same, separators=(", ", " = "))
        like = "if they mean the same, " * any("may be" in what for what in told)
        mends = [f"{like}[columns] rename = {pairs} makes these names one"] if rename else []
        if any("it has no" in what or "is not a" in what for what in told):
            mends.append("the job may list the columns to use in features, or those to leave out "
                         "in [columns] drop")  # fmt: skip
        raise SchemaMismatch("; ".join([*told, *mends]))


def _compare_labels(silo: str, own: Schema, reference: str, other: Schema) -> None:
    whose = reference if reference == "the job" else f"silo {reference}"
    for what, mine, theirs in (
        ("label", "', '".join(own.labels), "', '".join(other.labels)),
        ("task", own.task.value, other.task.value),
    ):
        if mine != theirs:
            raise SchemaMismatch(
                f"silo {silo}: its {what} is '{mine}', that of {whose} is '{theirs}'"
            )


def _types_differ(silo: str, feature: Feature, whose: str) -> SchemaMismatch:
    mine, theirs = ("text", "numbers") if feature.is_categorical else ("numbers", "text")
    return SchemaMismatch(
        f"silo {silo}: column '{feature.name}' has {mine}, that of {whose} has {theirs}; where the "
        f"numbers are names, [columns] categorical = {json.dumps([feature.name])} says so"
    )


def _united(columns: Mapping[str, Feature]) -> tuple[str, ...] | None:
    """Return the union of a column's category lists, None when it is numeric everywhere."""
    first: str | None = None
    union: set[str] = set()
    for silo, feature in columns.items():
        if feature.categories == ():
            continue
        if first is None:
            first = silo
        elif feature.is_categorical != columns[first].is_categorical:
            raise _types_differ(silo, feature, f"silo {first}")
        union.update(feature.categories or ())
    return tuple(sorted(union)) or None
