"""Federated training as estimators of scikit-learn, in this process.

The rows of ``X`` are dealt to silos, which train as silos of a federation do: same trees as
``hedgerow.local`` on the same silos. For work with data that is on one machine anyway: comparing
strategies, cross-validation, pipelines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_feature_names, check_is_fitted, validate_data

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task, to_score
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.ports import Horizontal, Result
from hedgerow.boosting.tables import to_dataset
from hedgerow.coordinator.operator.library.frames import arrow_of
from hedgerow.coordinator.operator.library.jobs import Job
from hedgerow.coordinator.operator.library.memory import Conditions, MemoryResult, federate
from hedgerow.coordinator.operator.library.models import files_of, of_files
from hedgerow.services.wire import schema as schema_wire

if TYPE_CHECKING:
    import xgboost

    from hedgerow.coordinator.operator.library.scoring import Model


class _Federated(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What both estimators share."""

    def __init__(
        self,
        strategy: str = "bagging",
        *,
        rounds: int | None = 30,
        eta: float = 0.3,
        max_depth: int = 6,
        n_silos: int = 3,
        random_state: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.strategy = strategy
        self.rounds = rounds
        self.eta = eta
        self.max_depth = max_depth
        self.n_silos = n_silos
        self.random_state = random_state
        self.settings = settings

    def _job(self, task: Task, classes: int) -> Job:
        booster = {"eta": self.eta, "max_depth": self.max_depth}
        given = dict(self.settings or {})
        booster |= given.pop("booster", {})
        job = Job(
            self.strategy,
            rounds=self.rounds,
            booster=booster,
            task=task.value,
            classes=classes if task is Task.MULTICLASS else None,
            seed=0 if self.random_state is None else int(self.random_state),
            **given,
        )
        strategy = job.parameters.strategy
        if not isinstance(strategy.layout, Horizontal) or strategy.result is Result.PERSONAL:
            raise InvalidJob(f"strategy {self.strategy} does not make one model of one table")
        return job

    def _rows(self, X: Any, *, reset: bool) -> Dataset:
        """Return features as a data set of numbers and categories."""
        if _has_text(X):
            _check_feature_names(self, X, reset=reset)
            table = arrow_of(X, "X").select([str(name) for name in X.columns])
            names = [str(name) for name in table.column_names]
            found = to_dataset(table, "X", task=Task.REGRESSION, label="", features=names)
            if reset:
                self.n_features_in_ = len(names)
            return found
        numbers = validate_data(
            self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=reset
        )
        known = getattr(self, "feature_names_in_", None)
        columns = [f"f{k}" for k in range(numbers.shape[1])] if known is None else list(known)
        schema = Schema(tuple(Feature(str(name)) for name in columns), "", Task.REGRESSION, 0)
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(numbers, dtype=np.float32)
        if np.isinf(values).any():
            raise ValueError("X has infinite values, or some beyond float32")
        return Dataset(schema, values)

    def _train(
        self,
        rows: Dataset,
        y: NDArray[np.float64],
        silos: ArrayLike | int | None,
        task: Task,
        k: int,
    ) -> None:
        schema = Schema(rows.schema.features, "label", task, k)
        whole = Dataset(schema, rows.X, y)
        dealt = self._dealt(len(y), silos)
        tables = {name: whole.take(at) for name, at in dealt.items()}
        self._keep(federate(self._job(task, k), tables, Conditions(crypto=False, codecs=False)))
        self.silos_ = np.array(list(dealt), dtype=object)

    def _dealt(self, n_rows: int, silos: ArrayLike | int | None) -> dict[str, NDArray[np.intp]]:
        """Return each silo's rows."""
        if silos is None or isinstance(silos, int | np.integer):
            count = min(self.n_silos if silos is None else int(silos), n_rows)
            if count < 1:
                raise ValueError(f"silos: expected at least 1, received {count}")
            order = np.random.default_rng(self.random_state or 0).permutation(n_rows)
            parts = np.array_split(order, count)
            return {f"silo-{k}": np.sort(part) for k, part in enumerate(parts)}
        names = np.asarray(silos).astype(str)
        if names.shape != (n_rows,):
            raise ValueError(f"silos: expected {n_rows} names, received shape {names.shape}")
        return {str(name): np.flatnonzero(names == name) for name in np.unique(names)}

    def _keep(self, result: MemoryResult) -> None:
        self.n_rounds_ = len(result.view.rounds)
        self._result = (dict(result.files), result.view.model, result.view.spec)
        self.model_ = self._loaded()

    def _loaded(self) -> Model:
        files, model, spec = self._result
        job = Job.from_spec(spec).parameters
        found = of_files(files, model, job, schema_wire.load(files["schema.json"]), "the result")
        return replace(found, files=files_of(files, model, spec))

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
        return tags


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier whose training rows are in silos.

    Parameters
    ----------
    strategy : str
        A horizontal strategy with one model: ``bagging``, ``histogram``, ``fedxgbllr``,
        ``dp_tree``, ``simfl``.
    rounds : int or None
        None for the strategy's own default.
    eta, max_depth
        Of ``[booster]``.
    n_silos : int
        Silos to which rows are dealt where :meth:`fit` gets no ``silos``.
    random_state : int or None
        The job's seed; None is 0.
    settings : Mapping or None
        Further keys of the job file.
    threshold : float
        Of two classes, the least probability with which :meth:`predict` says the second one.

    Attributes
    ----------
    classes_ : ndarray
    model_ : hedgerow.Model
    silos_ : ndarray
        Names of the silos.
    n_rounds_ : int
    """

    def __init__(
        self,
        strategy: str = "bagging",
        *,
        rounds: int | None = 30,
        eta: float = 0.3,
        max_depth: int = 6,
        n_silos: int = 3,
        random_state: int | None = None,
        settings: Mapping[str, Any] | None = None,
        threshold: float = 0.5,
    ) -> None:
        super().__init__(
            strategy, rounds=rounds, eta=eta, max_depth=max_depth, n_silos=n_silos,
            random_state=random_state, settings=settings,
        )  # fmt: skip
        self.threshold = threshold

    def fit(self, X: Any, y: Any, silos: ArrayLike | int | None = None) -> FederatedClassifier:
        """Train; ``silos`` is each row's silo, or how many silos get the rows.

        Raises
        ------
        FederationError
            The job cannot run.
        """
        rows = self._rows(X, reset=True)
        y = _column(self, X, y, rows.n_samples, numeric=False)
        check_classification_targets(y)
        encoder = LabelEncoder().fit(y)
        self.classes_ = encoder.classes_
        count = len(self.classes_)
        if count < 2:
            raise ValueError("expected labels of at least 2 classes, received one class")
        task = Task.BINARY if count == 2 else Task.MULTICLASS
        self._train(rows, encoder.transform(y).astype(np.float64), silos, task, count)
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
        if found.shape[1] == 2 and self.threshold != 0.5:
            self.model_.check_threshold(self.threshold)
            codes = (found[:, 1] >= self.threshold).astype(np.intp)
        return np.asarray(self.classes_[codes])

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return margins, one or one a class for each row."""
        return self._margins(X)


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor whose training rows are in silos; see :class:`FederatedClassifier`."""

    def fit(self, X: Any, y: Any, silos: ArrayLike | int | None = None) -> FederatedRegressor:
        """Train; see :meth:`FederatedClassifier.fit`."""
        rows = self._rows(X, reset=True)
        y = _column(self, X, y, rows.n_samples, numeric=True)
        self._train(rows, y, silos, Task.REGRESSION, 0)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return predicted numbers."""
        margins = self._margins(X)
        return self.model_.predictions(margins)


def _column(estimator: object, X: Any, y: Any, n_rows: int, *, numeric: bool) -> NDArray[Any]:
    """Return labels as a column of ``n_rows``."""
    from sklearn.utils import check_consistent_length, column_or_1d
    from sklearn.utils.validation import assert_all_finite

    if y is None:
        name = type(estimator).__name__
        raise ValueError(f"{name} requires y to be passed, but the target y is None")
    found = column_or_1d(y, warn=True)
    if found.dtype.kind in "fc" or (numeric and found.dtype.kind == "O"):
        found = found.astype(np.float64) if found.dtype.kind != "c" else found
        assert_all_finite(found, input_name="y")
    check_consistent_length(X, found)
    return np.asarray(found, dtype=np.float64) if numeric else np.asarray(found)


def _has_text(X: Any) -> bool:
    """Whether a frame has columns that are no numbers."""
    if not hasattr(X, "__arrow_c_stream__") or not hasattr(X, "columns"):
        return False
    import pyarrow as pa

    table = arrow_of(X, "X")
    kinds = [table.schema.field(name).type for name in map(str, X.columns)]
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    return not all(any(check(kind) for check in numeric) for kind in kinds)
