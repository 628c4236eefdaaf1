"""Tiny federations of every strategy that run in a few milliseconds, without a clock.

:class:`UrgentLoop` has virtual time: where all parties wait, it goes on to the next deadline. A job
that needs a deadline to end takes no longer than another, and one that would wait for ever is an
error.
"""

from __future__ import annotations

import asyncio
import hashlib
import selectors
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from hedgerow.boosting import warm_start
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import JobStopped
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.job import Booster, ColumnRules, WarmStart
from hedgerow.boosting.ports import JobParameters, SiloStart
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.explore.parameters import Explore
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost
from hedgerow.boosting.strategies.simfl.parameters import SimFL
from hedgerow.boosting.sums.groups import groups_of
from hedgerow.boosting.trees.decision_tree import MODEL_FILE
from hedgerow.client_agent import results
from hedgerow.client_agent.policy import Policy
from hedgerow.coordinator.server.barrier import ArrivedOffer
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.adversary.pairs import Change, changes
from tests.federation import vertical
from tests.federation.memory import KeyedIdentity, MemoryLink, Outcome, run_in_memory

STEP_SECONDS = 30.0
"""Of virtual time: a step's deadline."""


class WaitsForever(BaseException):
    """All parties wait, and there is no deadline."""


class _Selector(selectors.SelectSelector):
    """In place of the wait for sockets, of which there are none: time passes."""

    loop: UrgentLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise WaitsForever
        self.loop.now += timeout
        return []


class UrgentLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while all wait.

    What would be threads are greenlets of its own thread, which take turns: on a busy machine
    handing over between threads takes as much CPU time as all else of a small job.
    """

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self.create_future()

        def settle(result: Any, error: Exception | None) -> None:
            if done.done():  # nobody waits any more
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)

        def compute() -> None:
            try:
                result, failure = func(*args), None
            except Exception as error:
                result, failure = None, error
            self.call_soon(settle, result, failure)  # as a thread: after what it asked of the loop

        self.call_soon(greenlet(compute).switch)
        return done

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: no thread was started."""


class UrgentLink(MemoryLink):
    """A silo's end on an :class:`UrgentLoop`."""

    def meet(self, step: Step[Any, Any], at: ExchangeKey, parcel: ArrivedOffer[Any]) -> Any:
        reply = self.hub.offer(self.silo, step.name, at, parcel)
        silo = getcurrent()
        assert silo.parent is not None
        reply.add_done_callback(silo.switch)
        silo.parent.switch()
        return reply.result()


@dataclass(frozen=True)
class Variant:
    """A job, the tables of its silos, and how many silos their policies ask for in each sum.

    The coordinator is not told, as one that lies would not have heard.
    """

    job: JobParameters
    tables: Mapping[str, Dataset]
    tests: Mapping[str, Dataset] = field(default_factory=dict)
    starting_model: bytes = b""
    least_silos: int = 0

    @property
    def groups(self) -> tuple[tuple[Silo, ...], ...]:
        """Groups that sums are over as a whole."""
        return groups_of(tuple(sorted(self.tables)), self.job.seed)

    def changes(self, liars: Collection[Silo] = (), seed: str = "") -> list[Change]:
        """Return the exchanges of rows between silos that do not lie.

        Which rows GOSS and MVS of a silo's own keep follows from all of its rows: there silos
        exchange whole tables.
        """
        own = self.job.parameters
        whole = isinstance(own, Histogram) and own.sampling in ("goss", "mvs")
        whole = whole and not own.shares_threshold
        return changes(self.groups, self.tables, liars, seed, whole=whole)

    def run(
        self,
        make_link: Callable[..., MemoryLink],
        drawn: str,
        restart: ExchangeKey | None = None,
        refuses: Callable[[Silo, BaseException], None] = lambda silo, error: None,
    ) -> Outcome:
        """Run the job once; secrets and noise of horizontal silos are drawn from a seed.

        ``restart``: after so many rounds it goes on in a second attempt, from so many (``level``).
        ``refuses`` is called as a silo's half ends with an error.
        """

        def participate_as(parameters: Any, link: Any, vault: Any, start: SiloStart) -> Any:
            try:
                return warm_start.participate(link, vault, start)
            except BaseException as error:
                refuses(start.silo, error)
                raise

        vaults = cache(lambda silo: LocalVault(Random(f"{drawn}/{silo}").randbytes))
        memories: dict[str, dict[str, bytes]] = {silo: {} for silo in self.tables}
        given = (make_link, vaults, memories)
        if restart is None:
            return self._attempt(*given, participate_as=participate_as)
        first = self._attempt(
            *given, participate_as=participate_as, stop_after_rounds=restart.round
        )
        if first.error is not None or len(first.rounds) < restart.round:
            return first
        n_kept = restart.level
        second = self._attempt(
            *given, participate_as=participate_as, attempt=2, first_round=n_kept,
            checkpoint=first.rounds[n_kept - 1].checkpoint if n_kept else None,
        )  # fmt: skip
        left = {s: e for s, e in first.errors.items() if not isinstance(e, JobStopped)}
        return replace(
            second,
            rounds=[*first.rounds, *second.rounds],
            errors=left | second.errors,
            lost=first.lost + second.lost,
        )

    def reports(self, outcome: Outcome) -> dict[str, dict[str, float]]:
        """Return the scores of the result on silos' own test rows, as far as agents report them."""
        if outcome.artefact is None or not outcome.rounds[-1].final:
            return {}
        agent: Any = SimpleNamespace(policy=Policy(), n_threads=1)
        return {
            silo: results.leaving(agent.policy, self._scores(agent, outcome, silo), own.n_samples)
            for silo, own in self.tests.items()
            if silo not in outcome.rejected | outcome.errors
        }

    def _scores(self, agent: Any, outcome: Outcome, silo: str) -> dict[str, float]:
        made = outcome.kept.get(Silo(silo))
        if made is None and isinstance(self.job.parameters, FedGA):
            return {}  # the job's result is no model
        made = made or outcome.artefact
        assert made is not None
        return results.test_scores(agent, self.job, made, self.tests[silo])

    def _attempt(
        self,
        make_link: Callable[..., MemoryLink],
        vaults: Callable[[str], LocalVault],
        memories: dict[str, dict[str, bytes]],
        **rest: Any,
    ) -> Outcome:
        if not self.job.vertical:
            rest |= {"vaults": vaults, "identities": KeyedIdentity}
        else:
            rest |= {"vaults": vertical.vaults(), "schema": self.tables["guest"].schema}
        return run_in_memory(
            self.job,
            self.tables,
            timeout_seconds=STEP_SECONDS,
            make_link=make_link,
            lied=True,
            make_loop=UrgentLoop,
            starting_model=self.starting_model,
            tests=self.tests,
            validation=self.tests if self.job.validates else None,
            memories=memories,
            least_silos=self.least_silos,
            told_least=0,
            **rest,
        )


def _tables(
    task: Task, n_silos: int = 4, n_rows: int = 30, *, uneven: bool = False, heavy: bool = False
) -> dict[str, Dataset]:
    """Return tables with two numeric columns and one of three categories.

    All but the first have as many rows. Labels of a regression grow from silo to silo; where
    ``uneven``, the third alone has missing values, and the last alone has weights above one; where
    ``heavy``, only that.
    """
    n_classes = {Task.BINARY: 2, Task.MULTICLASS: 3}.get(task, 0)
    features = (Feature("age"), Feature("dose"), Feature("site", ("a", "b", "c")))
    schema = Schema(features, "label", task, n_classes)
    tables = {}
    for k in range(n_silos):
        rng = np.random.default_rng(100 + k)
        X = rng.normal(size=(n_rows + 5 * (k > 0), 3)).astype(np.float32)
        X[:, 2] = rng.integers(0, 3, len(X))
        X[:3, 2] = np.arange(3)
        signal = X[:, 0] + (X[:, 2] == 1) + rng.normal(0, 0.3, len(X))
        y = np.asarray(signal, np.float64) * 4**k
        if n_classes:
            edges = [0.3] if n_classes == 2 else [-0.2, 0.6]
            y = np.digitize(signal, edges).astype(np.float64)
        if task is Task.SURVIVAL:
            time = np.exp(signal)
            y = np.stack([time, np.where(rng.random(len(X)) < 0.7, time, np.inf)], axis=1)
        if uneven and k == 2:
            X[3:6, 1] = np.nan
        weight = np.ones(len(X)) * (3.0 if k == n_silos - 1 else 0.5)
        if task is Task.RANKING:  # whose rows have no weights
            y = np.stack([np.digitize(signal, [0.3, 0.9]), np.arange(len(X)) // 5], axis=1) * 1.0
            uneven = False
        tables[f"silo-{k}"] = Dataset(schema, X, y, weight if uneven or heavy else None)
    return tables


def _job(strategy: Any, task: Task, **booster: Any) -> JobParameters:
    columns = ColumnRules()
    if isinstance(strategy, PrivateBoost):
        ends = [("age", (-3.0, 3.0)), ("dose", (-3.0, 3.0))]
        ends += [("label", (-300.0, 300.0))] * (task is Task.REGRESSION)
        columns = ColumnRules(ranges=tuple(ends), levels=(("site", ("a", "b", "c")),))
    elif not isinstance(strategy, DPTree | Explore | FedGA):
        booster = {"max_depth": 2, "max_bin": 6, **booster}
    return JobParameters(
        "lies",
        strategy,
        task=task,
        seed=7,
        min_silos=3,
        booster=Booster(**booster),
        columns=columns,
    )


def _horizontal(strategy: Any, task: Task = Task.BINARY, **booster: Any) -> Variant:
    job = _job(strategy, task, **booster)
    job.parameters.validate(job)
    uneven = isinstance(strategy, Histogram | Bagging)
    return Variant(job, _tables(task, uneven=uneven, heavy=isinstance(strategy, FedXGBllr)))


def _with_tests(of: Variant) -> Variant:
    """Return a job whose silos have test rows of their own."""
    return replace(of, tests=_tables(of.job.task, len(of.tables), 25))


def _comparing(of: Variant) -> Variant:
    """Return a job that is scored by comparing rows of a silo with each other."""
    return replace(of, job=replace(of.job, metrics=("cox-nloglik", "c-index", "integrated-brier")))


def _going_on(strategy: Any) -> Variant:
    """Return a job that starts from the model of one just like it."""
    first = _horizontal(strategy)
    made = first.run(UrgentLink, "first").artefact
    assert made is not None
    raw = made.files[MODEL_FILE]
    schema = first.tables["silo-0"].schema.digest
    told = WarmStart("first", hashlib.sha256(raw).hexdigest(), schema)
    return replace(first, job=replace(first.job, warm_start=told), starting_model=raw)


def _grouped(strategy: Any, n_silos: int = 6) -> Variant:
    """Return a job of six silos in two groups, or of five in one."""
    tables = _tables(Task.BINARY, n_silos, uneven=isinstance(strategy, Histogram))
    job = replace(_job(strategy, Task.BINARY), silos=tuple(tables))
    job.parameters.validate(job)
    return Variant(job, tables)


def _vertical(**changes: Any) -> Variant:
    whole = vertical.table(40, 4)
    if "categories" in changes:
        whole = vertical.with_text(whole, {1: 5, 3: 5})
    booster = {"max_depth": 2, "max_bin": 4}
    job = vertical.job(booster=booster, **{"rounds": 1, **changes})
    return Variant(job, vertical.cut_by_columns(whole, [2, 2]))


def _llr(**given: Any) -> FedXGBllr:
    network = {"epochs": 1, "channels": 2} if given["combiner"] == "cnn" else {}
    rounds = {} if given["combiner"] == "ridge" else {"rounds": 2}
    return FedXGBllr(**{"trees": 8, **rounds, **network, **given})


def _coarsely(**given: Any) -> Histogram:
    """Return a job whose search for cut points ends after a few sums, which are most of a job."""
    return Histogram(**{"rounds": 1, "binning_error": 0.1, **given})


VARIANTS: dict[str, Callable[[], Variant]] = {
    "bagging": lambda: _horizontal(Bagging(rounds=2, validation=0.3)),
    "bagging-on": lambda: _going_on(Bagging(rounds=1)),
    "bagging-mean": lambda: _horizontal(Bagging(rounds=2, scrub="stats"), Task.REGRESSION),
    "bagging-gain": lambda: _horizontal(Bagging(rounds=2, lr_mode="gain")),
    "llr-cnn": lambda: _horizontal(_llr(combiner="cnn", validation=0.3)),
    "llr-secure": lambda: replace(
        _horizontal(_llr(combiner="cnn", rounds=1, secure=True, channels=4)),
        tables=_tables(Task.BINARY),
    ),
    "llr-leaves": lambda: _horizontal(_llr(combiner="leaves", secure=True)),
    "llr-ridge": lambda: _horizontal(
        _llr(combiner="ridge", shared_cuts=4, secure=True), Task.REGRESSION
    ),
    "llr-rates": lambda: _horizontal(_llr(combiner="logit_ridge", validation=0.3, scrub="none")),
    "hist-plain": lambda: _horizontal(_coarsely(rounds=2, secure=False)),
    "hist-secure": lambda: _with_tests(
        _horizontal(Histogram(rounds=2, binning="recursive", validation=0.2))
    ),
    "hist-valid": lambda: _with_tests(
        _horizontal(Histogram(rounds=1, binning="summary", validation_tables=True))
    ),
    "hist-on": lambda: _going_on(_coarsely()),
    "hist-summary": lambda: _horizontal(_coarsely(), Task.REGRESSION),
    "hist-quantile": lambda: _horizontal(
        Histogram(rounds=2, min_cell=3),
        Task.REGRESSION,
        objective="reg:quantileerror",
        quantile_alpha=0.3,
        more_alphas=(0.7,),
        min_child_weight=3.0,
    ),
    "hist-loss": lambda: _horizontal(
        _coarsely(rounds=2),
        Task.REGRESSION,
        loss="where(label > margin, 3, 1) * (label - margin)**2 + exp(margin / 9)",
    ),
    "hist-cox": lambda: _comparing(
        _horizontal(Histogram(rounds=2, min_cell=3), Task.SURVIVAL, objective="survival:cox")
    ),
    "hist-interval": lambda: _horizontal(
        _coarsely(validation=0.4, interval=0.8, min_cell=3), Task.REGRESSION
    ),
    "hist-blind": lambda: _horizontal(
        _coarsely(blind_coordinator=True)
    ),
    "hist-coarse": lambda: _horizontal(
        _coarsely(coarse_bits=5, sampling="mvs", sampling_scope="global", filled_bins=True)
    ),
    "hist-single": lambda: _horizontal(
        _coarsely(dropout_recovery=False, growth="lossguide"), max_leaves=4
    ),
    "hist-drawn": lambda: _grouped(Histogram(rounds=3, silos_per_round=3, binning="summary")),
    "hist-six": lambda: _grouped(_coarsely(rounds=2)),
    "hist-least": lambda: replace(_grouped(_coarsely()), least_silos=6),
    "hist-five": lambda: _grouped(_coarsely(sampling="mvs"), 5),
    "hist-sampled": lambda: _horizontal(_coarsely(rounds=2, sampling="goss"), Task.REGRESSION),
    "hist-forest": lambda: _horizontal(
        _coarsely(sampling="uniform"), num_parallel_tree=2, colsample_bytree=0.5
    ),
    "hist-ranking": lambda: _horizontal(_coarsely(rounds=2, validation=0.2), Task.RANKING),
    "hist-classes": lambda: _horizontal(_coarsely(), Task.MULTICLASS),
    "fedga": lambda: _with_tests(
        _horizontal(FedGA(generations=2, population=4, max_depth=2, folds=2, finalists=2))
    ),
    "fedga-drawn": lambda: _grouped(
        FedGA(generations=2, population=4, max_depth=4, folds=2, finalists=2, participation=0.5), 5
    ),
    "dp": lambda: _horizontal(DPTree(8.0, depth=2, bins=4)),
    "dp-candidates": lambda: _horizontal(DPTree(8.0, depth=2, bins=4, query="candidates")),
    "dp-quantile": lambda: _horizontal(DPTree(8.0, depth=2, bins=4, binning="quantile")),
    "boost": lambda: _horizontal(
        PrivateBoost(8.0, 1e-4, trees=6, depth=2, trees_per_exchange=2, bins=4)
    ),
    "boost-clear": lambda: _horizontal(
        PrivateBoost(trees=4, depth=2, trees_per_exchange=2, splits="node"), Task.MULTICLASS
    ),
    "boost-range": lambda: _horizontal(
        PrivateBoost(trees=2, depth=1, trees_per_exchange=1, dropout_recovery=False),
        Task.REGRESSION,
    ),
    "explore": lambda: _horizontal(Explore(bins=4, min_cell=5)),
    "explore-mean": lambda: _horizontal(Explore(bins=4, min_cell=5), Task.REGRESSION),
    "simfl": lambda: _horizontal(SimFL(rounds=3)),
    "simfl-mean": lambda: _horizontal(SimFL(rounds=2, hashes=3), Task.REGRESSION),
    "vertical": lambda: _vertical(),
    "vertical-sets": lambda: _vertical(categories="sets", encryption="elgamal", fraction_bits=16),
    "vertical-information": lambda: _vertical(
        information=True, encryption="elgamal", fraction_bits=16, rounds=10
    ),
    "vertical-mix": lambda: _vertical(
        mode="mix", encryption="elgamal", fraction_bits=16, rounds=2,
        increasing=("host-1:host-1_0",), decreasing=("host-1:host-1_1",),
        interaction_constraints=(("guest:guest_0", "host-1:host-1_0"), ("host-1:host-1_1",)),
    ),
}  # fmt: skip


@cache
def variant(name: str) -> Variant:
    """Return a variant by its name."""
    return VARIANTS[name]()
