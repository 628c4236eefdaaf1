"""A model that scores and explains rows."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import TRUTH, Dataset, Feature, Schema, Task, to_score
from hedgerow.boosting.errors import DataError, FederationError, ModelRejected
from hedgerow.boosting.intervals import PredictionInterval
from hedgerow.boosting.job import ColumnRules, is_feature
from hedgerow.boosting.tables import read_table, short_name, to_dataset
from hedgerow.boosting.tables.prepared import PreparedTable
from hedgerow.boosting.tables.values import is_number
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.coordinator.operator.library.arguments import checked

if TYPE_CHECKING:
    import xgboost

    from hedgerow.coordinator.operator.library.explaining import Picture
    from hedgerow.coordinator.operator.library.frames import Frame, Tabular
    from hedgerow.coordinator.operator.library.score_card import ScoreCard
    from hedgerow.coordinator.operator.report.trees import NodeNames

Floats = NDArray[np.float64]
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_NO_IDS: Mapping[str, str] = MappingProxyType({})


class ModelUnusable(FederationError):
    """A run folder or model file from which nothing can be scored; says which file and why."""


@dataclass(frozen=True, slots=True, repr=False)
class Model:
    """A model that scores rows; :func:`load` returns one.

    ``predict``, ``predict_proba`` and ``shap`` take a path or a frame of any library. Columns that
    the model does not use, the label among them, are ignored. A vertical model also takes a table
    for each party, by its name, and in ``ids`` their columns of identifiers where these are not
    ``_id``.

    Parameters
    ----------
    schema : Schema or None
        The schema of its silos; None when only the model file is at hand.
    names : tuple of str
        Features in the model's order; empty when the file does not say.
    metrics : tuple of str
        Those of its job.
    margins : callable
        Data set (coded by ``schema``) to margins, one or one a class for each row.
    ensemble : Ensemble
        Its trees.
    strategy : str
        Empty for a model file on its own.
    is_stock : bool
        Whether the sum of the trees is the model; else they are what a network combines.
    columns : ColumnRules
        How columns of a table become its features.
    parties : tuple of str
        Of a vertical model, whose feature each is.
    base_margins : tuple of str
        Columns with the margins that rows begin with, of a vertical model that was trained from
        some.
    files : Mapping
        What :func:`load` read it from, by path in a run folder; kept so that it can be saved.
    owner : str
        The silo whose own model it is, where each has one.
    """

    schema: Schema | None
    names: tuple[str, ...]
    n_features: int
    n_classes: int
    task: Task
    objective: str
    label: str
    metrics: tuple[str, ...]
    margins: Callable[[Dataset], Floats]
    ensemble: Ensemble
    strategy: str = ""
    is_stock: bool = True
    columns: ColumnRules = field(default_factory=ColumnRules)
    parties: tuple[str, ...] = ()
    base_margins: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    owner: str = ""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, empty where labels are numbers."""
        return () if self.schema is None else self.schema.classes

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels; their numbers where nothing has names."""
        known = (self.label, *self.columns.more_labels)
        several = self.is_stock and self.task is not Task.MULTICLASS and not self.quantiles
        n_labels = self.ensemble.about.n_outputs if several else 1
        return known if len(known) == n_labels else tuple(map(str, range(n_labels)))

    @property
    def quantiles(self) -> tuple[float, ...]:
        """Those that the model predicts side by side; empty for one alone."""
        found = self.ensemble.about.quantiles if self.is_stock else ()
        return found if len(found) > 1 else ()

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what a model of numbers predicts of a row: its labels, or quantiles of one."""
        return tuple(f"{alpha:g}" for alpha in self.quantiles) or self.labels

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in the order of :meth:`shap`."""
        return self.names or tuple(f"f{k}" for k in range(self.n_features))

    @property
    def node_names(self) -> NodeNames:
        """Names of features, and of each one's categories."""
        from hedgerow.coordinator.operator.report.trees import NodeNames

        if self.schema is None:
            return NodeNames(self.features, ((),) * self.n_features)
        return replace(NodeNames.of(self.schema, self.quantiles), features=self.features)

    def read(self, path: str, label: str) -> tuple[Dataset, Any]:
        """Return a table under the model's schema, and the Arrow table that it is from.

        Parameters
        ----------
        path : str
            File or URL.
        label : str
            Label column, empty to leave labels aside.

        Raises
        ------
        DataError
            A feature of the model is not there, or is of another type.
        """
        table = read_table(path, self.names)
        return self.coded(table, short_name(path), label), table

    def coded(self, table: Any, where: str, label: str = "") -> Dataset:
        """Return an Arrow table under the model's schema; see :meth:`read`."""
        names = self.names or tuple(n for n in table.column_names if is_feature(n, self.label))
        if len(names) != self.n_features:
            raise DataError(
                f"{where}: the model has {self.n_features} features, the table {len(names)}"
            )
        if label and len(self.labels) != 1 + len(self.columns.more_labels):
            raise DataError(
                f"{where}: the model has {len(self.labels)} outputs, and its file no names of "
                "their labels; score with its run folder, where job.toml has them"
            )
        if label and len(self.labels) > 1 and label != self.label:
            raise DataError(
                f"{where}: the model has the labels {', '.join(self.labels)}, under these names: "
                f"expected no other label, received {label}"
            )
        prepared = PreparedTable(table, where, self.columns, is_whole=False)
        weight = self.columns.weight if label else ""
        if weight not in prepared.column_names:
            weight = ""
        dataset = to_dataset(
            table,
            where,
            task=self.task,
            label=label,
            features=names,
            # With text labels the number of classes is checked when rows are scored.
            classes=self.n_classes,
            objective=self.objective,
            rules=self._rules(prepared),
            is_whole=False,
            weight=weight,
            base_margin=self.base_margins,
        )
        if self.schema is not None:
            return to_score(dataset, self.schema, where)
        if known := self.ensemble.category_names:
            own = tuple(map(Feature, names, known))
            return to_score(dataset, replace(dataset.schema, features=own), where)
        text = [f.name for f in dataset.schema.features if f.categories]
        if text:
            raise DataError(
                f"{where}: column '{text[0]}' has text, and the model file has no names of "
                "categories; score with its run folder, where schema.json has them"
            )
        return dataset

    def _rules(self, table: PreparedTable) -> ColumnRules:
        """Return the job's rules; codes that were categories of a frame are so in numbers, too."""
        if self.schema is None:
            return self.columns
        coded = (
            feature.name
            for feature in self.schema.features
            if feature.categories
            and feature.name in table.column_names
            and is_number(table.kind(feature.name))
            and all(_NUMBER.fullmatch(name) or name in TRUTH for name in feature.categories)
        )
        return replace(self.columns, categorical=(*self.columns.categorical, *coded))

    def predictions(self, margins: Floats) -> Floats:
        """Return probabilities (of class 1, or of each class) or predicted numbers."""
        return metrics.link(self.objective, margins)

    @property
    def interval(self) -> PredictionInterval | None:
        """How far labels of rows held back were from their predictions; None where nobody asked."""
        try:
            return PredictionInterval.of(self.ensemble.attributes)
        except ModelRejected as error:
            raise ModelUnusable(str(error)) from error

    @checked
    def predict_interval(
        self, table: Tabular | Mapping[str, Tabular], *, ids: Mapping[str, str] = _NO_IDS
    ) -> Floats:
        """Return the lower and upper end of an interval for each row, by rows held back.

        Its share of rows holds for rows that come as those held back did, over all silos together.
        Around one prediction it has the same width everywhere; around quantiles it is as wide as
        they are apart.

        Returns
        -------
        ndarray of shape (n_samples, 2), float64

        Raises
        ------
        ModelUnusable
            The job has asked for no interval, or had too few rows held back.
        """
        if self.interval is None:
            raise ModelUnusable(
                "the model has no interval: its job has asked for none, or has found none"
            )
        middle = np.asarray(self.predictions(self.margins(self.rows(table, ids=ids))), np.float64)
        return self.interval.ends(middle)

    def rows(
        self,
        table: Tabular | Mapping[str, Tabular],
        label: str = "",
        ids: Mapping[str, str] = _NO_IDS,
    ) -> Dataset:
        """Return a table's features, and labels where asked for, as the model reads them.

        Parameters
        ----------
        table : table
            Of a vertical model also a table for each party, with ``_id``: the rows are those
            that all parties have, in the order of the first one.
        label : str
            Column of the labels; empty for none.
        ids : Mapping
            By party, its column of identifiers where that is not ``_id``.

        Raises
        ------
        DataError
            ``ids`` of who has no table here.
        """
        from hedgerow.coordinator.operator.library import frames

        parts = _parties(table)
        if others := sorted(set(ids) - set(parts)):
            there = f"of {', '.join(parts)}" if parts else "and no tables by party are there"
            raise DataError(f"ids: expected parties {there}, received {', '.join(others)}")
        if parts:
            unlabelled = "" if label else self.label
            joined = frames.joined(parts, unlabelled, self.columns, ids)
            return self.coded(joined, "the parties' tables", label)
        arrow, where = frames.read(cast("Tabular", table), "the table", self.names)
        return self.coded(arrow, where, label)

    @checked
    def predict(
        self,
        table: Tabular | Mapping[str, Tabular],
        *,
        threshold: float | None = None,
        ids: Mapping[str, str] = _NO_IDS,
    ) -> NDArray[Any]:
        """Return predictions: names or numbers of classes, or numbers.

        Parameters
        ----------
        threshold : float, optional
            Of two classes, the least probability of the positive one; 0.5 where it is not given.

        Returns
        -------
        ndarray of shape (n_samples,)
            Of several labels (n_samples, n_labels).
        """
        self.check_threshold(threshold)
        return self.decided(self.predictions(self.margins(self.rows(table, ids=ids))), threshold)

    def check_threshold(self, threshold: float | None) -> None:
        """Raise :class:`ModelUnusable` for a threshold of other than two classes, or no share."""
        if threshold is not None and self.task is not Task.BINARY:
            raise ModelUnusable(f"threshold: a {self.task.value} model has none")
        if threshold is not None and not 0.0 <= threshold <= 1.0:
            raise ModelUnusable(f"threshold: expected 0 to 1, received {threshold}")

    def decided(self, found: Floats, threshold: float | None = None) -> NDArray[Any]:
        """Return the likeliest classes of :meth:`predictions`; numbers as they are."""
        if not self.task.of_classes:
            return found
        least = 0.5 if threshold is None else threshold
        of_classes = self.task is Task.MULTICLASS
        codes = found.argmax(axis=1) if of_classes else (found >= least).astype(np.int64)
        # A binary class that no silo has seen has no name.
        if len(self.classes) > int(codes.max(initial=0)):
            return np.asarray(self._labels[codes])
        return np.asarray(codes, dtype=np.int64)

    @property
    def _labels(self) -> NDArray[Any]:
        """The classes as the table has them: numbers and truth values where their names say so."""
        if self.schema is not None and self.schema.numbered:
            if sorted(self.classes) == [*TRUTH]:
                return np.array([name == TRUTH[1] for name in self.classes])
            if all(_NUMBER.fullmatch(name) for name in self.classes):
                return np.array([int(name) for name in self.classes])
        return np.array(self.classes, dtype=object)

    def by_class(self, found: Floats) -> dict[str, Floats]:
        """Return the probabilities of :meth:`predictions` under the classes' names, in order.

        Of several labels they are those that a row has each of them, under the labels' names.
        """
        if len(self.labels) > 1:
            return {name: found[:, k] for k, name in enumerate(self.labels)}
        if found.ndim == 1:
            found = np.stack([1.0 - found, found], axis=1)
        known = len(self.classes) == found.shape[1]
        names = self.classes if known else [str(k) for k in range(found.shape[1])]
        return {name: found[:, k] for k, name in enumerate(names)}

    @checked
    def predict_proba(
        self, table: Tabular | Mapping[str, Tabular], *, ids: Mapping[str, str] = _NO_IDS
    ) -> Frame:
        """Return probabilities, one column a class under its name, in class order.

        Raises
        ------
        ModelUnusable
            The model predicts numbers.
        """
        from hedgerow.coordinator.operator.library.frames import Frame

        if not self.task.of_classes:
            raise ModelUnusable("the model predicts numbers: it has no probabilities")
        found = self.predictions(self.margins(self.rows(table, ids=ids)))
        return Frame(self.by_class(found), "probabilities")

    @checked
    def evaluate(
        self,
        table: Tabular | Mapping[str, Tabular],
        names: Sequence[str] = (),
        *,
        label: str = "",
        threshold: float | None = None,
        ids: Mapping[str, str] = _NO_IDS,
    ) -> dict[str, float]:
        """Return metrics of a table with labels by their names.

        Rows count what the job's column of weights says, where the table has it.

        Parameters
        ----------
        names : sequence of str
            Those of its job where none is given; see ``hedgerow help metrics``.
        label : str
            The label's column where it is not the job's.
        threshold : float, optional
            Of two classes, the least probability of the second one, for metrics of decisions such
            as f1 and accuracy; 0.5 where it is not given.

        Raises
        ------
        InvalidJob
            A metric that there is not, or of another task.
        ModelUnusable
            A threshold of a model of other than two classes.
        DataError
            The table has no labels, or cannot be used.
        """
        return self.scores(self.rows(table, label or self.label, ids), names, threshold)

    def scores(
        self, rows: Dataset, names: Sequence[str] = (), threshold: float | None = None
    ) -> dict[str, float]:
        """Return what :meth:`evaluate` does of rows as the model reads them."""
        self.check_threshold(threshold)
        chosen = tuple(metrics.canonical(name, self.task) for name in names)
        chosen = metrics.of_job(
            chosen or self.metrics,
            self.task,
            self.ensemble.about.failure_times,
            self.objective,
            self.quantiles,
        ) or metrics.defaults(self.task, len(self.labels))
        metrics.check(chosen, self.task, len(self.labels), self.objective)
        return metrics.evaluate(
            chosen,
            rows.labels,
            self.margins(rows),
            objective=self.objective,
            weight=rows.weight,
            threshold=0.5 if threshold is None else threshold,
        )

    @checked
    def score(
        self,
        table: Tabular | Mapping[str, Tabular],
        metric: str = "",
        *,
        ids: Mapping[str, str] = _NO_IDS,
    ) -> float:
        """Return a metric of a table with labels; accuracy or R² where none is given.

        Of survival it is the share of rows whose predicted time is between its bounds, or of a
        hazard the concordance; of a ranking NDCG; of several quantiles their mean pinball loss; of
        several labels R² is the mean over them, as scikit-learn's.
        """
        of_times = "c-index" if self.objective == "survival:cox" else "interval-regression-accuracy"
        usual = {
            Task.REGRESSION: "r2", Task.SURVIVAL: of_times, Task.RANKING: "ndcg",
        }.get(self.task, "accuracy")  # fmt: skip
        usual = "pinball" if self.quantiles else usual
        if len(self.labels) > 1 and (metric or usual) == "r2":
            rows = self.rows(table, self.label, ids)
            pairs = zip(rows.labels.T, self.margins(rows).T, strict=True)
            found = [
                metrics.evaluate(["r2"], *pair, objective=self.objective, weight=rows.weight)["r2"]
                for pair in pairs
            ]
            return float(np.mean(found))
        (value,) = self.evaluate(table, [metric or usual], ids=ids).values()
        return value

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model: a folder that ``load`` and ``hedgerow predict`` read, or a stock file.

        Parameters
        ----------
        path : path
            With the ending ``.ubj`` or ``.json`` XGBoost's file, which has no names of classes.
        overwrite : bool
            Whether the file, or a run in the folder, may go.

        Raises
        ------
        FederationError
            A file that is there, a folder with a run, or a model that is no stock one for a stock
            file.
        """
        from hedgerow.coordinator.operator.run_folder import claim
        from hedgerow.crypto.durable import write_atomically

        target = Path(path)
        if target.suffix in (".ubj", ".json"):
            model = self.to_xgboost()
            if target.exists() and not overwrite:
                raise FederationError(f"{target} is there already: overwrite=True replaces it")
            model.save_model(target)
            return
        claim(target, overwrite=overwrite)
        for name, data in self.files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(target / name, data, 0o644)

    @checked
    def shap(
        self,
        table: Tabular | Mapping[str, Tabular],
        background: Tabular | Mapping[str, Tabular] | None = None,
        *,
        by_party: bool = False,
        ids: Mapping[str, str] = _NO_IDS,
    ) -> Floats:
        """Return what each feature adds to the margin of each row, and the bias as last column.

        The values of a row sum to its margin. They are exact Shapley values of the trees, as
        XGBoost computes them. Where training left out how many rows each node has (``scrub``), the
        rows of ``background`` are counted. Of a network over trees they are estimated, from
        orders of features and rows of ``background`` that are the same in each call.

        Parameters
        ----------
        background : table, optional
            Rows that stand for all rows; the rows of ``table`` where it is not given.
        by_party : bool
            Of a vertical model, whether to sum by party; columns in the order of their first
            features in ``parties``.

        Returns
        -------
        ndarray of shape (n_samples, n_features + 1)
            With several classes (n_samples, n_classes, n_features + 1).

        References
        ----------
        Lundberg et al., From local explanations to global understanding with explainable AI for
        trees, 2020. Štrumbelj and Kononenko, Explaining prediction models and individual
        predictions with feature contributions, 2014.
        """
        rows = self.rows(table, ids=ids)
        others = rows if background is None else self.rows(background, ids=ids)
        return self.contributions(rows, others, by_party=by_party)

    def contributions(
        self, rows: Dataset, background: Dataset, *, by_party: bool = False
    ) -> Floats:
        """Return :meth:`shap` of rows as the model reads them.

        Raises
        ------
        ModelUnusable
            ``by_party``, and the model is of no parties.
        """
        from hedgerow.coordinator.operator.library import explaining

        if by_party and not self.parties:
            raise ModelUnusable("contributions by party are of a vertical model")
        if not self.is_stock:
            return explaining.of_margins(self.margins, rows, background)
        found = explaining.of_trees(self.ensemble, rows, background)
        if rows.base_margin is not None:  # part of the bias, as in XGBoost
            found[..., -1] += rows.base_margin.reshape(found.shape[:-1])
        if by_party:
            from hedgerow.boosting.strategies.secureboost.directions import by_party as summed

            found, _ = summed(found, tuple((party, k) for k, party in enumerate(self.parties)))
        return found

    def importance(self) -> Frame:
        """Return each feature's share of the gain and its number of splits, the largest first."""
        from hedgerow.coordinator.operator.library.explaining import importance

        return importance(self.ensemble, self.node_names)

    def curves(self) -> Frame:
        """Return what each feature's values add to the margin: steps of one curve a feature.

        The margin of a row is ``base_score``'s and one step of each feature. ``deviation`` is
        about that of a budget's noise; NaN without one.

        Raises
        ------
        ModelUnusable
            A tree asks of two features, or the trees alone are not the model.
        """
        from hedgerow.coordinator.operator.library.explaining import curves

        found = curves(self.ensemble, self.node_names) if self.is_stock else None
        if found is None:
            raise ModelUnusable(
                "the model is no sum of curves: its trees ask of several features; private_boost "
                'with structure = "cyclic", or max_depth = 1, has one feature a tree'
            )
        return found

    @checked
    def score_card(
        self, points_to_double: float = 20.0, base: float = 600.0, odds: float = 1.0
    ) -> ScoreCard:
        """Return an additive model of two classes as points by column and bin.

        Parameters
        ----------
        points_to_double : float
            Points that double the odds of the positive class; below 0 points fall with them.
        base : float
            Score of a row with ``odds``.
        odds : float
            Odds of the positive class at ``base``.

        Raises
        ------
        ModelUnusable
            The model is of other than two classes, or no sum of one part a column.
        InvalidJob
            A number that no card can have.
        """
        from hedgerow.coordinator.operator.library.score_card import ScoreCard, why_not

        why = why_not(self.ensemble, self.node_names)
        if not self.is_stock or self.base_margins:
            own = "starts from a column of margins" if self.base_margins else "has a network"
            why = f"expected a sum of trees, received a model that {own}"
        if why:
            raise ModelUnusable(f"score card: {why}")
        return ScoreCard(self.ensemble, self.node_names, self.rows, points_to_double, base, odds)

    def trees(self) -> Frame:
        """Return all nodes of all trees, one a row, with names of features and categories."""
        from hedgerow.coordinator.operator.library.explaining import nodes

        return nodes(self.ensemble, self.node_names, numeric=bool(self.parties))

    def plot_tree(self, tree: int = 0) -> Picture:
        """Return a drawing of a tree, which notebooks show; the first three levels of it."""
        from hedgerow.coordinator.operator.library.explaining import picture

        return picture(self.ensemble, self.node_names, tree)

    def to_xgboost(self) -> xgboost.Booster:
        """Return the model as XGBoost's own.

        Raises
        ------
        ModelUnusable
            A network combines the trees.
        """
        if not self.is_stock:
            raise ModelUnusable("a network combines the trees of this model: XGBoost has none")
        return self.ensemble.booster(n_threads=0)

    def __repr__(self) -> str:
        of = f" of {self.strategy}" if self.strategy else ""
        trees = f"{self.ensemble.version} trees, {self.n_features} features"
        return f"<Model{of}: {self.objective}, {trees}>"

    def _repr_html_(self) -> str:
        """Return what the model is and its importance, for notebooks."""
        return f"<p>{escape(repr(self)[1:-1])}</p>{self.importance()._repr_html_()}"


def _parties(table: object) -> dict[str, Tabular]:
    """Return the tables of parties where a table is one for each, and not columns by name."""
    if not isinstance(table, Mapping) or not table:
        return {}
    whole = all(
        isinstance(own, str | os.PathLike | Mapping) or hasattr(own, "columns")
        for own in table.values()
    )
    return dict(table) if whole else {}
