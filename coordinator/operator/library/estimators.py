"""Federated training as estimators of scikit-learn, in this process.

The rows of ``X`` are dealt to silos, which train as silos of a federation do: same trees as
``hedgerow.local`` on the same silos. For work with data that is on one machine anyway: comparing
strategies, cross-validation, pipelines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar
from warnings import warn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_feature_names, check_is_fitted, validate_data

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task, to_score
from hedgerow.boosting.errors import InvalidJob, ResultWarning
from hedgerow.boosting.job import MOST_WEIGHT, ColumnRules, is_feature
from hedgerow.boosting.ports import Horizontal, Result
from hedgerow.boosting.queries import query_starts
from hedgerow.boosting.tables import to_dataset
from hedgerow.boosting.tables.prepared import PreparedTable
from hedgerow.coordinator.operator.library.arguments import interactions, monotone, number
from hedgerow.coordinator.operator.library.arrays import (
    dense_of,
    is_numeric,
    labels_of,
    seed_of,
    table_of,
    values_of,
    weights_of,
)
from hedgerow.coordinator.operator.library.frames import arrow_of, warn_of_integers
from hedgerow.coordinator.operator.library.jobs import XGBOOST_ALIASES, Job, nested, plain
from hedgerow.coordinator.operator.library.memory import (
    Conditions,
    EarlyStop,
    MemoryResult,
    federate,
)
from hedgerow.coordinator.operator.library.models import files_of, of_files
from hedgerow.coordinator.operator.run_folder import unusual
from hedgerow.services.identity.certificates import check_name
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire import schema as schema_wire

if TYPE_CHECKING:
    import xgboost

    from hedgerow.coordinator.operator.library.scoring import Model


DEFAULT_ROUNDS = 30
EvalSets = Sequence[tuple[Any, Any]] | None
"""Pairs of features and labels."""
EvalWeights = Sequence[ArrayLike | None] | None
"""What the rows of each of them count."""

_BOOSTER = (
    "learning_rate", "max_depth", "max_leaves", "grow_policy", "max_bin", "min_child_weight",
    "gamma", "max_delta_step", "subsample", "colsample_bytree", "colsample_bylevel",
    "colsample_bynode", "reg_alpha", "reg_lambda", "scale_pos_weight", "base_score",
    "num_parallel_tree", "tree_method", "max_cat_to_onehot", "max_cat_threshold", "objective",
    "device",
)  # fmt: skip
_SURVIVAL = (
    "y has one column, and survival needs two: take FederatedSurvival, whose y has events and times"
)
_NO_COLUMNS = {
    "event": _SURVIVAL,
    "label_upper": _SURVIVAL,
    "qid": "give queries to fit of FederatedRanker, as qid",
    "weight": "give the weights to fit, as sample_weight",
    "class_weight": "give it to the estimator",
    "positive": "classes of an estimator are sorted, and the last one is positive",
    "missing_label": "leave rows without a label out of X and y",
}
EVENT = "label_event"
"""Column that says whether an event was seen in the job of survival."""
QUERY = "label_query"
"""Column of the query in the job of a ranking."""
_CONSTRAINTS = {"monotone_constraints": monotone, "interaction_constraints": interactions}


@dataclass(eq=False, repr=False)
class _Federated(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What both estimators share."""

    strategy: str = "bagging"
    _: KW_ONLY
    rounds: int | None = None
    eta: float | None = None
    max_depth: int | None = None
    n_silos: int = 3
    random_state: int | np.random.RandomState | None = None
    settings: Mapping[str, Any] | None = None
    n_estimators: int | None = None
    learning_rate: float | None = None
    max_leaves: int | None = None
    grow_policy: str | None = None
    max_bin: int | None = None
    min_child_weight: float | None = None
    gamma: float | None = None
    max_delta_step: float | None = None
    subsample: float | None = None
    colsample_bytree: float | None = None
    colsample_bylevel: float | None = None
    colsample_bynode: float | None = None
    reg_alpha: float | None = None
    reg_lambda: float | None = None
    scale_pos_weight: float | None = None
    base_score: float | None = None
    num_parallel_tree: int | None = None
    tree_method: str | None = None
    max_cat_to_onehot: int | None = None
    max_cat_threshold: int | None = None
    objective: str | None = None
    device: str | None = None
    eval_metric: str | Sequence[str] | None = None
    early_stopping_rounds: int | None = None
    monotone_constraints: Mapping[str, int] | Sequence[int] | str | None = None
    interaction_constraints: Sequence[Sequence[str | int]] | str | None = None
    missing: float | None = np.nan
    n_jobs: int | None = None

    of_times: ClassVar[bool] = False
    """Whether labels are times of an event, and whether it was seen."""

    def _job(self, rows: Dataset, seed: int | None, *, scored: bool) -> Job:
        """Return the job of the parameters, for rows to score if ``scored``."""
        schema = rows.schema
        job_wire.check_strategy(self.strategy)
        asked: dict[tuple[str, str], tuple[str, Any]] = {}
        given = self._given(schema, seed, scored=scored)
        for table, key, name, value in given:
            first, other = asked.setdefault((table, key), (name, value))
            if other != value:
                raise InvalidJob(
                    f"{first} = {other!r} and {name} = {value!r} are one parameter: give one of "
                    "them, or one value"
                )
        if "rounds" in job_file.keys(self.strategy):
            asked.setdefault((self.strategy, "rounds"), ("rounds", DEFAULT_ROUNDS))
        values: dict[str, Any] = {"strategy": self.strategy}
        for (table, key), (_, value) in asked.items():
            (values.setdefault(table, {}) if table else values)[key] = value
        columns = values.get("columns", {})
        if rows.weight is not None:
            name = "sample_weight"
            while name in schema.names:
                name += "_"
            values["columns"] = {**columns, "weight": name}
        job = Job.from_spec(job_file.of_table(values))
        strategy = job.parameters.strategy
        if not isinstance(strategy.layout, Horizontal) or strategy.result in (
            Result.PERSONAL,
            Result.TABLE,
        ):
            raise InvalidJob(f"strategy {self.strategy} does not make one model of one table")
        return job

    def _given(
        self, schema: Schema, seed: int | None, *, scored: bool
    ) -> Iterator[tuple[str, str, str, Any]]:
        """Yield table and key of the job for each parameter that is set, its name and its value."""
        own, metrics = self.strategy, self.eval_metric
        features, of_classes = schema.names, schema.task is Task.MULTICLASS
        trees = "trees" if "trees" in job_file.keys(own) else "rounds"
        found: list[tuple[str, str, str, Any]] = [
            ("", "label", "label", list(schema.labels) if schema.more_labels else None),
            ("", "task", "task", schema.task.value),
            ("columns", "event", "event", EVENT if schema.task is Task.SURVIVAL else None),
            ("columns", "qid", "qid", QUERY if schema.task is Task.RANKING else None),
            ("", "classes", "classes", schema.n_outputs if of_classes else None),
            ("", "test_data", "eval_set", "test" if scored else None),
            ("", "metrics", "eval_metric", [metrics] if isinstance(metrics, str) else metrics),
            ("", "seed", "random_state", seed),
            (own, "rounds", "rounds", self.rounds),
            (own, trees, "n_estimators", self.n_estimators),
            ("booster", "eta", "eta", self.eta),
        ]
        gap = self._columns()[0].missing
        if gap is not None and np.isfinite(gap):  # a job has no infinite one
            found.append(("columns", "missing", "missing", gap))
        for name, read in _CONSTRAINTS.items():
            given = getattr(self, name)
            if given is not None:
                found.append(("booster", name, name, read(given, features) or None))
        if not scored:
            name = "early_stopping_rounds"
            found.append((own, name, name, self.early_stopping_rounds))
        found += [("booster", XGBOOST_ALIASES.get(n, n), n, getattr(self, n)) for n in _BOOSTER]
        for table, inner in nested({"strategy": own, **(self.settings or {})}).items():
            if table in (own, "booster", "columns"):
                found += [(table, key, f"settings[{key!r}]", v) for key, v in inner.items()]
            elif table != "strategy":
                found.append(("", table, f"settings[{table!r}]", inner))
        for table, key, name, value in found:
            if value is not None:
                yield table, key, name, list(value) if isinstance(value, tuple) else plain(value)

    def _rows(self, X: Any, *, reset: bool) -> Dataset:
        """Return features as a data set, under the job's ``[columns]``."""
        rules, chosen = self._columns()
        table = table_of(X)
        if table is not None and not table.column_names:
            raise ValueError("X: 0 feature(s) while a minimum of 1 is required.")
        if reset and table is not None:
            names = [str(name) for name in table.column_names]
            others = [name for name in names if not is_feature(name, "")]
            if others and not chosen:
                raise ValueError(
                    f"X: {str(others)[1:-1]}: no job has features of such names ('_...', 'label', "
                    f"'label_...' or none): leave them out, in pandas by X.drop(columns={others}), "
                    "or rename what is a feature"
                )
            warn_of_integers(table, "X", names)
        # A few rows to score may lack all texts, which makes their columns numbers.
        named = table is not None and (
            hasattr(X, "column_names")
            or not is_numeric(table)
            or (not reset and getattr(self, "_has_text", False))
        )
        if named:
            _check_feature_names(self, table if hasattr(X, "column_names") else X, reset=reset)
            if reset:
                self.n_features_in_ = len(table.column_names)
        else:
            infinite = np.isinf(rules.missing or 0.0)
            numbers = dense_of(validate_data(
                self, X, dtype=np.float64, reset=reset, accept_sparse="csr",
                ensure_all_finite=False if infinite else "allow-nan",
            ))  # fmt: skip
            known = getattr(self, "feature_names_in_", None)
            names = [f"f{k}" for k in range(numbers.shape[1])] if known is None else known
            if rules == ColumnRules() and not chosen:
                schema = Schema(tuple(Feature(str(n)) for n in names), "", Task.REGRESSION, 0)
                with np.errstate(over="ignore"):
                    values = np.ascontiguousarray(numbers, dtype=np.float32)
                if (wrong := np.isinf(values).any(axis=0)).any():
                    name = names[int(wrong.argmax())]
                    raise ValueError(
                        f"X: column '{name}' has infinite values or some beyond float32"
                    )
                return Dataset(schema, values)
            table = arrow_of({str(n): numbers[:, k] for k, n in enumerate(names)}, "X")
        if reset:
            self._has_text = named
        chosen = chosen or PreparedTable(table, "X", rules, is_whole=True).column_names
        return to_dataset(table, "X", task=Task.REGRESSION, label="", features=chosen, rules=rules)

    def _columns(self) -> tuple[ColumnRules, Sequence[str]]:
        """Return what ``settings`` say of columns, with ``missing``, and which are features.

        Raises
        ------
        InvalidJob
            They say something of labels, which an estimator has apart from its table.
        """
        job_wire.check_strategy(self.strategy)
        told = nested({"strategy": self.strategy, **(self.settings or {})})
        columns, features = told.get("columns", {}), told.get("features", ())
        for key, instead in _NO_COLUMNS.items():
            if key in columns:
                raise InvalidJob(f"[columns] {key}: {instead}")
        objectives = self.objective, told.get("booster", {}).get("objective")
        if not self.of_times and (
            told.get("task") == "survival"
            or any(str(o).startswith("survival:") for o in objectives)
        ):
            raise InvalidJob(f"{type(self).__name__}: {_SURVIVAL}")
        gap = number("missing", np.nan if self.missing is None else self.missing, float)
        own = {self.strategy: told.get(self.strategy, {})}
        values = {"strategy": self.strategy, "columns": columns, "features": list(features), **own}
        found = job_wire.decode(job_file.of_table(values))  # which task it has is known with labels
        if not np.isnan(gap):
            if found.columns.missing not in (None, gap):
                raise InvalidJob(
                    f"missing = {gap:g} and settings['missing'] = {found.columns.missing:g} are "
                    "one parameter: give one of them, or one value"
                )
            return replace(found.columns, missing=gap), found.features
        return found.columns, found.features

    def _labels(self, X: Any, y: Any, rows: Dataset, *, numeric: bool) -> NDArray[Any]:
        owner = type(self).__name__
        return labels_of(X, y, rows.n_samples, numeric=numeric, owner=owner)

    def _sets(
        self, given: EvalSets, weights: EvalWeights, *, numeric: bool
    ) -> dict[str, tuple[Dataset, NDArray[Any]]]:
        """Return features and labels of evaluation sets by XGBoost's names of them."""
        found, sets = {}, list(given or ())
        if not all(isinstance(one, tuple | list) and len(one) == 2 for one in sets):
            raise ValueError("eval_set: expected a list of pairs (X, y)")
        told = [None] * len(sets) if weights is None else list(weights)
        if len(told) != len(sets):
            raise ValueError(
                f"sample_weight_eval_set: expected {len(sets)} arrays, one a set of eval_set, "
                f"received {len(told)}"
            )
        weighted = any(own is not None for own in told)
        for k, ((X, y), own) in enumerate(zip(sets, told, strict=True)):
            rows = self._rows(X, reset=False)
            if weighted:
                own = weights_of(1.0 if own is None else own, rows.n_samples)
                rows = replace(rows, weight=own)
            labels = self._labels(X, y, rows, numeric=numeric)
            found[f"validation_{k}"] = rows, labels
        return found

    def _train(
        self,
        rows: Dataset,
        y: NDArray[np.float64],
        silos: ArrayLike | int | None,
        weight: NDArray[np.float64] | None,
        task: Task,
        k: int,
        sets: Mapping[str, tuple[Dataset, NDArray[np.float64]]],
    ) -> None:
        paired = task in (Task.RANKING, Task.SURVIVAL)  # labels of two numbers
        n_labels = y.shape[1] if y.ndim == 2 and not paired else 1
        more = tuple(f"label_{k}" for k in range(1, n_labels))

        def labelled(rows: Dataset, y: NDArray[np.float64]) -> Dataset:
            schema = Schema(rows.schema.features, "label", task, k, more_labels=more)
            return Dataset(schema, rows.X, y, rows.weight)

        whole = replace(labelled(rows, y), weight=weight)
        seed = seed_of(self.random_state)
        if task is Task.RANKING and (silos is None or np.ndim(silos) == 0):  # whole queries
            sizes = np.diff(query_starts(y[:, 1]))
            parts = self._dealt(len(sizes), silos, seed or 0)
            of_rows = np.repeat(np.arange(len(sizes)), sizes)
            dealt = {name: np.flatnonzero(np.isin(of_rows, own)) for name, own in parts.items()}
        else:
            dealt = self._dealt(len(y), silos, seed or 0)
        tables = {name: whole.take(at) for name, at in dealt.items()}
        job = self._job(whole, seed, scored=bool(sets))
        names = job.parameters.metrics or metrics.defaults(task)
        patience = self.early_stopping_rounds
        stop = EarlyStop(list(sets)[-1], names[-1], patience) if sets and patience else None
        conditions = Conditions(
            crypto=False, codecs=False, workers=self.n_jobs or 0, early_stop=stop
        )
        tests = {name: labelled(*own) for name, own in sets.items()}
        self._keep(federate(job, tables, conditions, tests or None), sets, stop)
        self.silos_ = np.array(list(dealt), dtype=object)

    def _dealt(
        self, n_rows: int, silos: ArrayLike | int | None, seed: int
    ) -> dict[str, NDArray[np.intp]]:
        """Return each silo's rows."""
        if silos is None or isinstance(silos, int | np.integer):
            given = number("n_silos", self.n_silos, int) if silos is None else int(silos)
            count = min(given, n_rows)
            if count < 1:
                raise ValueError(f"silos: expected at least 1, received {count}")
            order = np.random.default_rng(seed).permutation(n_rows)
            parts = np.array_split(order, count)
            return {f"silo-{k}": np.sort(part) for k, part in enumerate(parts)}
        if np.ndim(silos) == 0:
            raise ValueError(
                f"silos: expected a whole number or each row's silo, received {silos!r}"
            )
        names = np.asarray(values_of(silos, "silos")).astype(str)
        if names.shape != (n_rows,):
            raise ValueError(f"silos: expected {n_rows} names, received shape {names.shape}")
        for name in np.unique(names):
            check_name("silos: the name", str(name))
        return {str(name): np.flatnonzero(names == name) for name in np.unique(names)}

    def _keep(self, result: MemoryResult, sets: Iterable[str], stop: EarlyStop | None) -> None:
        """Keep the result, and what the sets scored in each round."""
        self.n_rounds_ = len(result.view.rounds)
        self.evals_result_: dict[str, dict[str, list[float]]] = {name: {} for name in sets}
        for one in result.view.rounds:
            for score in one.scores:
                if score.data in self.evals_result_:
                    own = self.evals_result_[score.data].setdefault(score.metric, [])
                    own.append(score.value)
        for name in {"best_iteration", "best_score"} & set(vars(self)):
            delattr(self, name)  # of an earlier fit
        if stop is not None:
            self.best_iteration = result.view.best_round
            self.best_score = self.evals_result_[stop.data][stop.metric][self.best_iteration]
        self._result = (dict(result.files), result.view.model, result.view.spec)
        for told in unusual(result.files, result.view)["warnings"]:
            warn(told, ResultWarning, stacklevel=4)
        self.model_ = self._loaded()

    def _loaded(self) -> Model:
        files, model, spec = self._result
        job = Job.from_spec(spec).parameters
        found = of_files(files, model, job, schema_wire.load(files["schema.json"]), "the result")
        return replace(found, files=files_of(files, model, spec))

    def evals_result(self) -> dict[str, dict[str, list[float]]]:
        """Return the scores of ``eval_set`` by set, by metric, one a round."""
        check_is_fitted(self)
        return self.evals_result_

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Each feature's share of the gain, in the order of the columns; they sum to 1.

        Of the splits where the model has no gains, as one of fewer than three silos.
        """
        check_is_fitted(self)
        rows = {row["feature"]: row for row in self.model_.importance().rows()}
        for kind in ("gain", "splits"):
            own = [rows.get(name, {}).get(kind) or 0.0 for name in self.model_.features]
            found = np.maximum(np.nan_to_num(np.array(own, np.float64)), 0.0)
            if found.any():
                return np.asarray(found / found.sum())
        return found

    def get_booster(self) -> xgboost.Booster:
        """Return the model as XGBoost's own; see :meth:`hedgerow.Model.to_xgboost`."""
        check_is_fitted(self)
        return self.model_.to_xgboost()

    def _margins(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        rows = self._rows(X, reset=False)
        schema = self.model_.schema
        assert schema is not None
        return self.model_.margins(to_score(rows, schema))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the loaded model, which its files give again."""
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("model_", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_result" in state:
            self.model_ = self._loaded()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags


@dataclass(eq=False, repr=False)
class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier whose training rows are in silos.

    Parameters
    ----------
    strategy : str
        A horizontal strategy with one model: ``bagging``, ``histogram``, ``fedxgbllr``,
        ``dp_tree``, ``simfl``.
    rounds, n_estimators : int or None
        Rounds; 30 where neither is given. Of ``fedxgbllr`` ``n_estimators`` is the trees of each
        silo, and ``rounds`` those of its network.
    eta, learning_rate : float or None
        Step size; 0.3 where neither is given.
    max_depth, gamma, subsample, ...
        These and the others that follow, up to ``objective``, as of XGBoost's estimators, with its
        defaults where None. A strategy refuses those that it does not have.
    eval_metric : str or sequence of str, optional
        Metrics by round; the task's usual ones where None.
    early_stopping_rounds : int or None
        Rounds without a better score before training ends; the best round is the model. By the last
        metric of the last set of ``eval_set``; without one by rows that silos hold back
        (``settings={"validation": 0.1}``).
    monotone_constraints : Mapping, sequence of int or str, optional
        By column 1 where the prediction may only grow with the value and -1 where it may only fall,
        or one number a column.
    interaction_constraints : sequence of sequences or str, optional
        Groups of columns, by name or place, that may divide nodes of one path, as of XGBoost.
    missing : float or None
        Number that stands for a missing value, beside NaN; infinity, too.
    n_jobs : int or None
        Silos that compute at the same time; None for one a core.
    n_silos : int
        Silos to which rows are dealt where :meth:`fit` gets no ``silos``.
    random_state : int, RandomState or None
        The job's seed, of a generator one that is drawn in each fit; None is 0.
    settings : Mapping or None
        Further keys of the job file. A parameter that is given twice needs one value.
    threshold : float
        Of two classes, the least probability with which :meth:`predict` says the second one.
    class_weight : Mapping, "balanced" or None
        What rows of each class count, times ``sample_weight``; as scikit-learn's.

    Attributes
    ----------
    classes_ : ndarray
    model_ : hedgerow.Model
    silos_ : ndarray
        Names of the silos.
    n_rounds_ : int
        Rounds that were trained.
    evals_result_ : dict
        See :meth:`evals_result`.
    best_iteration, best_score : int, float
        Where ``eval_set`` ended training: the best round, from 0, and its score.
    """

    _: KW_ONLY
    threshold: float = 0.5
    class_weight: Mapping[Any, float] | str | None = None

    def fit(
        self,
        X: Any,
        y: Any,
        silos: ArrayLike | int | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        eval_set: EvalSets = None,
        sample_weight_eval_set: EvalWeights = None,
    ) -> FederatedClassifier:
        """Train.

        Parameters
        ----------
        silos : array of names, or int, optional
            Each row's silo, or how many silos get the rows.
        sample_weight : array of numbers from 0, optional
            What each row counts in gradients and in the start score, as in XGBoost.
        eval_set : sequence of (X, y), optional
            Rows that are scored after each round: :meth:`evals_result` has the scores of
            ``validation_0``, ``validation_1`` and so on.
        sample_weight_eval_set : sequence of arrays or None, optional
            What each row of these sets counts in scores; all the same without.

        Raises
        ------
        FederationError
            The job cannot run.
        """
        rows = self._rows(X, reset=True)
        y = self._labels(X, y, rows, numeric=False)
        check_classification_targets(y)
        encoder = LabelEncoder().fit(y)
        self.classes_ = encoder.classes_
        count = len(self.classes_)
        if count < 2:
            raise ValueError("expected labels of at least 2 classes, received one class")
        task = Task.BINARY if count == 2 else Task.MULTICLASS
        coded = encoder.transform(y).astype(np.float64)
        sets = self._sets(eval_set, sample_weight_eval_set, numeric=False)
        known = {n: (own, encoder.transform(y).astype(np.float64)) for n, (own, y) in sets.items()}
        weight = weights_of(sample_weight, rows.n_samples)
        if self.class_weight is not None:
            if isinstance(self.class_weight, Mapping):
                for name, given in self.class_weight.items():
                    value = number(f"class_weight: {name!r}", given, float)
                    if not 1 / MOST_WEIGHT < value < MOST_WEIGHT:
                        raise ValueError(
                            f"class_weight: {name!r}: expected a number between 2^-64 and 2^64, "
                            f"received {value!r}"
                        )
            own = compute_sample_weight(self.class_weight, y)
            if weight is not None:
                own = weights_of(weight * own, len(own), "sample_weight times class_weight")
            weight = own
        self._train(rows, coded, silos, weight, task, count, known)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return probabilities, shape (n_samples, n_classes), in the order of ``classes_``."""
        margins = self._margins(X)
        found = self.model_.predictions(margins)
        return np.stack([1.0 - found, found], axis=1) if found.ndim == 1 else found

    def predict(self, X: Any) -> NDArray[Any]:
        """Return each row's most likely class; of two the positive one from ``threshold`` on."""
        found = self.predict_proba(X)
        codes = found.argmax(axis=1)
        if self.threshold != 0.5:
            least = number("threshold", self.threshold, float)
            self.model_.check_threshold(least)
            codes = (found[:, 1] >= least).astype(np.intp)
        return np.asarray(self.classes_[codes])

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return margins, one or one a class for each row."""
        return self._margins(X)


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor whose training rows are in silos; see :class:`FederatedClassifier`.

    ``y`` may have several columns: ``bagging`` and ``histogram`` train one model of all of them.
    """

    def fit(
        self,
        X: Any,
        y: Any,
        silos: ArrayLike | int | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        eval_set: EvalSets = None,
        sample_weight_eval_set: EvalWeights = None,
    ) -> FederatedRegressor:
        """Train; see :meth:`FederatedClassifier.fit`."""
        rows = self._rows(X, reset=True)
        y = self._labels(X, y, rows, numeric=True)
        sets = self._sets(eval_set, sample_weight_eval_set, numeric=True)
        if other := [name for name, (_, own) in sets.items() if own.shape[1:] != y.shape[1:]]:
            raise ValueError(f"eval_set: {other[0]} has another number of labels than y")
        weight = weights_of(sample_weight, rows.n_samples)
        self._train(rows, y, silos, weight, Task.REGRESSION, 0, sets)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return predicted numbers, shape (n_samples,) or (n_samples, n_labels)."""
        margins = self._margins(X)
        return self.model_.predictions(margins)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
