"""``train``: XGBoost's own loop, around a job whose rounds the federation grows."""

from __future__ import annotations

import inspect
import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any

import xgboost
from xgboost import training as stock

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import WarmStart
from hedgerow.xgboost import callback, collective
from hedgerow.xgboost.continuing import ContinuedRun, mark, told_by
from hedgerow.xgboost.data import (
    categories_of,
    check_bins,
    n_labels,
    n_margins,
    names_of,
    refuse_columns,
    table_of,
    with_values,
)
from hedgerow.xgboost.parameters import Stopping, TrainRequest, asked
from hedgerow.xgboost.scripted import SiteGradients, SiteMetric

if TYPE_CHECKING:
    from hedgerow.coordinator.operator.library.running import Run
    from hedgerow.services.wire.job_view import FinishedRound

Evals = Sequence[tuple[xgboost.DMatrix, str]]


class TrainingRefused(InvalidJob, xgboost.core.XGBoostError):  # type: ignore[misc]
    """What cannot be trained so; a ValueError, as all that XGBoost refuses."""


@wraps(xgboost.train)
def train(*args: Any, **kwargs: Any) -> xgboost.Booster:
    """Train as ``xgboost.train``; inside of a context, over the rows of all of its sites."""
    try:
        return _train(*args, **kwargs)
    except InvalidJob as error:
        raise TrainingRefused(str(error)) from error.__cause__


def _train(
    params: dict[str, Any] | None,
    dtrain: xgboost.DMatrix,
    num_boost_round: int = 10,
    *,
    evals: Evals | None = None,
    obj: Any = None,
    early_stopping_rounds: int | None = None,
    verbose_eval: bool | int | None = True,
    xgb_model: Any = None,
    callbacks: Sequence[xgboost.callback.TrainingCallback] | None = None,
    custom_metric: Any = None,
    **others: Any,
) -> xgboost.Booster:
    context = collective.joined()
    called: dict[str, Any] = {
        "evals": evals, "early_stopping_rounds": early_stopping_rounds,
        "xgb_model": xgb_model, **others,
    }  # fmt: skip
    if context is None or num_boost_round < 1:
        given = {**called, "obj": obj, "callbacks": callbacks, "verbose_eval": verbose_eval,
                 "custom_metric": custom_metric}  # fmt: skip
        return xgboost.train(_stock(params), dtrain, num_boost_round, **given)
    for name, function in (("obj", obj), ("custom_metric", custom_metric)):
        if function is not None and not callable(function):
            raise InvalidJob(f"{name}: expected a function, received {function!r}")
    started = None if xgb_model is None else told_by(xgb_model)
    called["xgb_model"] = None  # XGBoost need not read it
    own = list(callbacks or ())
    by_round = callback.given_by(own, num_boost_round)
    if verbose_eval:
        period = 1 if verbose_eval is True else verbose_eval
        own.append(callback.EvaluationMonitor(period=period))
    valid = stopping = None
    if not context.local:
        valid = _validation_of(dtrain, evals or ())
        maximize = called.pop("maximize", None)
        stopping, own = _stopping_of(own, early_stopping_rounds, maximize, evals or (), dtrain)
        called["early_stopping_rounds"] = None
    job = _Federated(
        context, params, dtrain, num_boost_round, list(evals or ()), valid, stopping, by_round,
        started, None if obj is None else SiteGradients(obj, dtrain),
        custom_metric if evals else None,
    )  # fmt: skip
    job.tells = bool(verbose_eval) and not context.local
    with job:
        return xgboost.train(
            _stock(params), dtrain, num_boost_round,
            callbacks=[job, *own, _Ending(job.growing)], verbose_eval=False, **called,
        )  # fmt: skip


def _validation_of(dtrain: xgboost.DMatrix, evals: Evals) -> xgboost.DMatrix | None:
    """Return this site's validation rows: the set of ``evals`` that is not trained on."""
    found = [(matrix, name) for matrix, name in evals if matrix is not dtrain]
    if len(found) > 1:
        raise InvalidJob(
            f"evals: {found[0][1]!r} and {found[1][1]!r}: sites of several organisations score "
            "dtrain and one other set each round; score more by eval of the booster that train "
            "returns"
        )
    return found[0][0] if found else None


def _stopping_of(
    callbacks: list[Any],
    patience: int | None,
    maximize: bool | None,
    evals: Evals,
    dtrain: xgboost.DMatrix,
) -> tuple[Stopping | None, list[Any]]:
    """Return when all sites' job ends early, and the callbacks that are left to this one.

    XGBoost's own rule would end one site's script alone.
    """
    found = [one for one in callbacks if isinstance(one, xgboost.callback.EarlyStopping)]
    others = [one for one in callbacks if one not in found]
    if len(found) + bool(patience) > 1:
        raise InvalidJob("early_stopping_rounds: expected one rule that ends the job early")
    if patience:
        found = [xgboost.callback.EarlyStopping(rounds=patience, maximize=maximize)]
    if not found:
        return None, others
    rule = found[0]
    if not evals:
        raise ValueError("Must have at least 1 validation dataset for early stopping.")
    names = [name for _, name in evals]
    last = evals[-1][1]
    scored = next((name for matrix, name in evals if matrix is not dtrain), last)
    if rule.data not in (None, *names):
        raise InvalidJob(f"data_name: {rule.data!r} is none of {', '.join(names)}")
    if (rule.data or last) != scored:
        raise InvalidJob(
            f"early_stopping_rounds: all sites' job ends by {scored!r}, which is not trained on: "
            "put it last in evals"
        )
    return Stopping(rule.rounds, rule.metric_name, rule.maximize, rule._min_delta), others


def rebound(function: Callable[..., Any], **ours: Any) -> Callable[..., Any]:
    """Return a function of XGBoost's that calls our functions where it calls XGBoost's."""
    own = inspect.unwrap(function)
    assert isinstance(own, FunctionType)
    assert set(own.__code__.co_names) & set(ours), f"{own.__qualname__} calls none of them"
    found = FunctionType(
        own.__code__, {**own.__globals__, **ours}, own.__name__, own.__defaults__, own.__closure__
    )
    found.__kwdefaults__ = own.__kwdefaults__
    return wraps(own)(found)


@wraps(xgboost.cv)
def cv(*args: Any, **kwargs: Any) -> Any:
    """Cross-validate as ``xgboost.cv``; inside of a context each fold is a job of its own.

    A fold has the rows that each site's script draws of its own, and scores of all sites.
    """
    if collective.joined() is None:
        return xgboost.cv(*args, **kwargs)
    own = inspect.unwrap(xgboost.cv)
    asked = inspect.signature(own).bind(*args, **kwargs)
    asked.apply_defaults()
    refuse_columns(asked.arguments["dtrain"], "dtrain")
    rounds, metric = asked.arguments["num_boost_round"], asked.arguments["custom_metric"]
    replayed = _Replayed(callback.given_by(asked.arguments["callbacks"] or (), rounds))

    class Fold(stock.CVPack):  # type: ignore[misc]  # XGBoost is skipped
        def __init__(self, dtrain: xgboost.DMatrix, dtest: xgboost.DMatrix, param: Any) -> None:
            super().__init__(dtrain, dtest, _stock(param))
            self.param, self.scores = param, dict[str, dict[str, list[float]]]()

        def update(self, iteration: int, fobj: Any) -> None:
            if not self.scores:
                train(
                    self.param, self.dtrain, rounds, evals=self.watchlist, obj=fobj,
                    custom_metric=metric, evals_result=self.scores, callbacks=[replayed],
                    verbose_eval=False,
                )  # fmt: skip

        def eval(self, iteration: int, feval: Any, output_margin: bool) -> str:
            scores = [
                f"\t{data}-{name}:{values[iteration]:.17g}"
                for data, found in self.scores.items()
                for name, values in found.items()
            ]
            return f"[{iteration}]" + "".join(scores)

    grouped = rebound(stock.mkgroupfold, CVPack=Fold)
    folds = rebound(stock.mknfold, CVPack=Fold, mkgroupfold=grouped)
    return rebound(xgboost.cv, mknfold=folds)(*args, **kwargs)


class _Replayed(xgboost.callback.TrainingCallback):  # type: ignore[misc]  # XGBoost is skipped
    """Sets the parameters of rounds that other callbacks would have set."""

    def __init__(self, by_round: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self._by_round = by_round

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Set those of a round."""
        if self._by_round:
            model.set_param(dict(self._by_round[epoch]))
        return False


def _pairs(params: Any) -> list[tuple[str, Any]]:
    """Return parameters, which XGBoost takes as a mapping or as pairs, as pairs."""
    return [*params.items()] if isinstance(params, Mapping) else [*(params or ())]


def _stock(params: Any) -> Any:
    """Return the parameters that are XGBoost's, as a mapping or as pairs, as they are given."""
    kind = dict if isinstance(params, Mapping) else list
    return kind((name, value) for name, value in _pairs(params) if not name.startswith("hedgerow_"))


def _weights_of(matrix: xgboost.DMatrix) -> list[float]:
    """Return how likely each feature is drawn, as its float32 is written; empty where alike."""
    return [float(str(one)) for one in matrix.get_float_info("feature_weights")]


class _Abandoned(Exception):
    """Raised in the job where the script has ended otherwise."""


class _Federated(xgboost.callback.TrainingCallback):  # type: ignore[misc]  # XGBoost is skipped
    """Puts a booster that the federation grows in place of the one that XGBoost would grow."""

    def __init__(
        self,
        context: collective.Joined,
        params: Any,
        dtrain: xgboost.DMatrix,
        rounds: int,
        evals: list[tuple[xgboost.DMatrix, str]],
        valid: xgboost.DMatrix | None,
        stopping: Stopping | None,
        by_round: list[dict[str, Any]],
        started: ContinuedRun | None,
        gradients: SiteGradients | None,
        custom_metric: Any,
    ) -> None:
        super().__init__()
        weighted = any(len(matrix.get_weight()) for matrix, _ in [(dtrain, ""), *evals])
        n_outputs, n_starts = n_labels(dtrain), n_margins(dtrain)
        self.asked = asked(
            params, context.settings, rounds=rounds, features=names_of(dtrain),
            weighted=weighted, scored=bool(evals), tested=bool(evals) and context.local,
            world_size=context.site.world_size, stopping=stopping, validated=valid is not None,
            by_round=by_round, feature_weights=_weights_of(dtrain), n_labels=n_outputs,
            n_starts=n_starts,
            gradients="" if gradients is None else gradients.name, custom_metric=custom_metric,
        )  # fmt: skip
        check_bins(dtrain, self.asked.job.parameters.booster.max_bin)
        validation = self.asked.job.parameters.parameters.validation  # type: ignore[attr-defined]
        if evals and not context.local and validation and valid is None:
            raise InvalidJob("evals: with hedgerow_validation only rows held back are scored")
        read = partial(
            table_of, classes=self.asked.classes, weighted=weighted, bounded=self.asked.bounded,
            signed=self.asked.signed, ranked=self.asked.ranked, n_labels=n_outputs,
            n_starts=n_starts,
        )  # fmt: skip
        table, scored = read(dtrain, "dtrain"), self.asked.metrics or custom_metric is not None
        own = evals if context.local and scored else []
        tests = {n: read(m, n) for m, n in own}
        rows = None
        if valid is not None and scored:
            rows = read(valid, "evals")
        errors = [] if gradients is None else gradients.errors
        self._metrics: dict[str, SiteMetric] = {}
        if custom_metric is not None:
            own_link = "" if gradients else self.asked.job.parameters.objective
            sets = {n: m for m, n in evals}
            if not context.local:
                sets = {"train": dtrain} | ({} if valid is None else {"valid": valid})
            self._metrics = {
                n: SiteMetric(custom_metric, m, own_link, errors) for n, m in sets.items()
            }
        self._dtrain, self._stops = dtrain, stopping is not None
        job, site = self.asked.job, context.site
        self._rounds_before = 0
        if started is not None:
            self._rounds_before = started.rounds
            start = WarmStart(started.run, started.model, started.schema)
            job = job.going_on(start, lambda: started.rounds)
        self.growing = _Growing(
            lambda told: site.train(
                job, table, tests, validation=rows, on_round=told, gradients=gradients,
                metrics=self._metrics or None,
            ),
            waits=context.local,
            errors=errors,
        )  # fmt: skip

    tells = False
    """Whether what was moved is printed at the end."""

    def __enter__(self) -> None:
        """Begin; the job itself does with the first round."""

    def __exit__(self, *args: object) -> None:
        self.growing.abandon()

    def before_training(self, model: xgboost.Booster) -> xgboost.Booster:
        """Return a booster without trees whose rounds are the federation's."""
        return _Booster(self.growing, self.asked, self._dtrain, self._rounds_before, self._metrics)

    def after_training(self, model: xgboost.Booster) -> xgboost.Booster:
        """Return the stock booster of all rounds."""
        run = self.growing.finish()
        if self.tells and collective.get_rank() == 0:
            rounds = run.document["rounds"]
            up, down = (sum(one[key] for one in rounds) / 1e6 for key in ("bytes_up", "bytes_down"))
            collective.communicator_print(
                f"{len(rounds)} rounds: {up:.2f} MB from all silos, {down:.2f} MB to them"
            )
        found = _as_of(run.model.to_xgboost(), self._dtrain)
        mark(found, run)
        found.set_attr(**model.attributes())
        found.set_param([("eval_metric", name) for name, _ in self.asked.metrics])
        if self.asked.quantiles:  # of the metric, which no model file has
            found.set_param("quantile_alpha", str([*self.asked.quantiles]))
        if self._stops:
            best = found.num_boosted_rounds() - 1
            name = self.asked.job.parameters.metrics[0]
            sets = run.document["rounds"][best - self._rounds_before]["metrics"]
            score = sets.get("valid", sets.get("train", {}))[name]
            found.set_attr(best_iteration=str(best), best_score=str(score))
        return found


class _Ending(xgboost.callback.TrainingCallback):  # type: ignore[misc]  # XGBoost is skipped
    """Ends the loop, after all other callbacks, where the job has ended early by its own rule."""

    def __init__(self, growing: _Growing) -> None:
        super().__init__()
        self._growing = growing

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Return whether no round follows."""
        return self._growing.over


class _Growing:
    """A job in a thread of its own, whose rounds are handed over one by one.

    Parameters
    ----------
    waits : bool
        Whether each round waits until it is asked for. One that does not ends with its job alone,
        and the last one is known as such, for the next is looked for first.
    """

    def __init__(
        self,
        train: Callable[[Callable[[FinishedRound], bool]], Run],
        *,
        waits: bool,
        errors: Sequence[BaseException] = (),
    ) -> None:
        self._train, self.waits, self._errors = train, waits, errors
        self._grown: queue.Queue[FinishedRound | None] = queue.Queue()
        self._ahead: FinishedRound | None = None
        self._goes_on: queue.Queue[bool | None] = queue.Queue()
        self._stops = False
        self._run: Run | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def over(self) -> bool:
        """Whether no round follows the last one that was handed over."""
        return not self.waits and self._ahead is None

    def next(self) -> FinishedRound:
        """Return the next round, once it is grown."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="training", daemon=True)
            self._thread.start()
            found = self._grown.get()
        elif self.waits:
            self._goes_on.put(True)
            found = self._grown.get()
        else:
            found = self._ahead
        if found is None:
            self._joined()
            raise InvalidJob("the job ended before its first round")
        if not self.waits:
            self._ahead = self._grown.get()
        return found

    def finish(self) -> Run:
        """End the job with the rounds so far and return what it left."""
        self._goes_on.put(False)
        if not self.waits and not self.over:
            raise InvalidJob(
                "callbacks: one site's script has ended a job of all before its last round, which "
                "alone leaves a model; give hedgerow_early_stopping_rounds"
            )
        return self._joined()

    def abandon(self) -> None:
        """End the job, whose script has ended otherwise; nothing where it is over."""
        self._stops = True
        if self._thread is not None and self._thread.is_alive():
            self._goes_on.put(None)

    def _joined(self) -> Run:
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._run is not None
        return self._run

    def _told(self, finished: FinishedRound) -> bool:
        """Hand a round over; return whether training is to end with it."""
        self._grown.put(finished)
        if not self.waits:
            return self._stops
        goes_on = self._goes_on.get()
        if goes_on is None:
            raise _Abandoned
        return not goes_on

    def _work(self) -> None:
        try:
            self._run = self._train(self._told)
        except _Abandoned:
            pass
        except BaseException as error:  # raised again where the script waits
            self._error = self._errors[0] if self._errors else error
        finally:
            self._grown.put(None)


class _Booster(xgboost.Booster):  # type: ignore[misc]  # XGBoost is skipped
    """What callbacks see while rounds are grown: scores and attributes, no trees."""

    def __init__(
        self,
        growing: _Growing,
        asked: TrainRequest,
        dtrain: xgboost.DMatrix,
        before: int,
        metrics: Mapping[str, SiteMetric],
    ) -> None:
        super().__init__({}, [dtrain])
        self._metrics = metrics
        self._before = before
        self._growing, self._asked, self._dtrain = growing, asked, dtrain
        self._local = growing.waits  # a set is one of test rows then, by its name
        self._finished: list[FinishedRound] = []
        self._given: dict[str, Any] = {}

    def update(self, dtrain: xgboost.DMatrix, iteration: int, fobj: Any = None) -> None:
        """Wait for the next round of the federation."""
        here = len(self._finished)
        agreed = self._asked.by_round[here] if self._given else {}
        if self._given != agreed:
            raise InvalidJob(
                f"set_param: expected {agreed} of round {here}, received {self._given}: it is "
                "agreed on before the first round, by its number alone"
            )
        self._finished.append(self._growing.next())

    def eval_set(
        self, evals: Evals, iteration: int = 0, feval: Any = None, output_margin: bool = True
    ) -> str:
        """Return the last round's scores as XGBoost writes them."""
        scores = self._finished[-1].metrics
        return f"[{iteration}]" + "".join(
            f"\t{data}-{name}:{scores[own][ours]:.17g}"
            for matrix, data in evals
            for own in (
                data
                if self._local and data in scores
                else "train"
                if self._local or matrix is self._dtrain
                else "valid",
            )
            for name, ours in (
                *self._asked.metrics,
                *((one.told, self._asked.custom) for one in [*self._metrics.values()][:1]),
            )
        )

    def num_boosted_rounds(self) -> int:
        """Return how many rounds are grown, with those of the model that these go on from."""
        return self._before + len(self._finished)

    def set_param(self, params: Any, value: Any = None) -> None:
        """Refuse what would change a job under way; XGBoost itself calls it first."""
        if not hasattr(self, "_growing"):
            return
        try:
            given = callback.of_rounds(params, value)
        except KeyError:
            raise InvalidJob(
                "set_param: a job under way keeps its parameters: give them to train"
            ) from None
        if given and not self._asked.by_round:
            raise InvalidJob(
                "set_param: rates of a job's rounds are agreed on before the first: give train "
                "callback.LearningRateScheduler, with a list or a function of the round"
            )
        self._given |= given


def _refused(name: str) -> Callable[..., Any]:
    def refuse(self: xgboost.Booster, *args: Any, **kwargs: Any) -> Any:
        raise InvalidJob(
            f"{name}: silos keep the trees until training ends; use it on what train returns"
        )

    return refuse


for _name in (
    "predict", "inplace_predict", "save_model", "save_raw", "dump_model", "get_dump", "get_score",
    "get_fscore", "trees_to_dataframe", "copy", "eval", "boost", "__getitem__", "__getstate__",
):  # fmt: skip
    setattr(_Booster, _name, _refused(_name))


def _as_of(booster: xgboost.Booster, matrix: xgboost.DMatrix) -> xgboost.Booster:
    """Return a silo's model as one that XGBoost trained on a matrix: its names, types and codes."""
    if "c" in (matrix.feature_types or ()):
        document = json.loads(booster.save_raw("json"))
        _with_codes(document["learner"]["gradient_booster"]["model"], booster, matrix)
        booster.load_model(bytearray(json.dumps(document).encode()))
    booster.feature_names, booster.feature_types = matrix.feature_names, matrix.feature_types
    return booster


def _with_codes(model: dict[str, Any], booster: xgboost.Booster, matrix: xgboost.DMatrix) -> None:
    """Write the matrix's codes of categories in place of the silos' common ones, which have names.

    They stay where other silos have categories whose names the matrix has not.
    """
    common = booster.get_categories(export_to_arrow=True).to_arrow() or ()
    codes: dict[int, list[int]] = {}
    for k, ((_, found), own) in enumerate(zip(common, categories_of(matrix), strict=True)):
        names = [] if found is None else found.to_pylist()
        if own is not None and not set(names) <= set(own):
            return
        codes[k] = [int(name) if own is None else own.index(name) for name in names]
    for tree in model["trees"]:
        for node, first, size in zip(
            tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"],
            strict=True,
        ):  # fmt: skip
            here, to = slice(first, first + size), codes[tree["split_indices"][node]]
            tree["categories"][here] = sorted(to[code] for code in tree["categories"][here])
    one = with_values(matrix).slice([0])
    one.set_label([0.0])
    stock = xgboost.train({"base_score": 0.5}, one, 1)
    learner = json.loads(stock.save_raw("json"))["learner"]
    model["cats"] = learner["gradient_booster"]["model"]["cats"]
