"""Tiny federations of every strategy that run in a few milliseconds, without a clock.

:class:`UrgentLoop` has virtual time: where all parties wait, it goes on to the next deadline. A job
that needs a deadline to end takes no longer than another, and one that would wait for ever is an
error.
"""

from __future__ import annotations

import asyncio
import hashlib
import selectors
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.exchange import Place, Step
from hedgerow.boosting.job import Booster, WarmStart
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.simfl.parameters import SimFL
from hedgerow.boosting.trees.decision_tree import MODEL_FILE
from hedgerow.coordinator.server.rendezvous import ArrivedOffer
from hedgerow.crypto.local_vault import LocalVault
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

    def meet(self, step: Step[Any, Any], at: Place, parcel: ArrivedOffer[Any]) -> Any:
        reply = self.hub.offer(self.silo, step.name, at, parcel)
        silo = getcurrent()
        assert silo.parent is not None
        reply.add_done_callback(silo.switch)
        silo.parent.switch()
        return reply.result()


@dataclass(frozen=True)
class Variant:
    """A job and the tables of its silos."""

    job: JobParameters
    tables: Mapping[str, Dataset]
    memory: dict[str, Any] = field(default_factory=dict)
    starting_model: bytes = b""

    def run(self, make_link: Callable[..., MemoryLink], drawn: str) -> Outcome:
        """Run the job once; secrets and noise of horizontal silos are drawn from a seed."""

        def vault(silo: str) -> LocalVault:
            return LocalVault(Random(f"{drawn}/{silo}").randbytes)

        rest: dict[str, Any] = {}
        if not self.job.vertical:
            rest = {"vaults": vault, "identities": KeyedIdentity}
        else:
            rest = {
                "vaults": vertical.vaults(),
                "memories": {silo: {} for silo in self.tables},
                "schema": self.tables["guest"].schema,
            }
        return run_in_memory(
            self.job,
            self.tables,
            timeout_seconds=STEP_SECONDS,
            make_link=make_link,
            lied=True,
            make_loop=UrgentLoop,
            starting_model=self.starting_model,
            **rest,
        )


def _tables(task: Task, n_silos: int = 4, n_rows: int = 30) -> dict[str, Dataset]:
    """Return tables with two numeric columns and one of three categories."""
    n_classes = {Task.REGRESSION: 0, Task.BINARY: 2, Task.MULTICLASS: 3}[task]
    features = (Feature("age"), Feature("dose"), Feature("site", ("a", "b", "c")))
    schema = Schema(features, "label", task, n_classes)
    tables = {}
    for k in range(n_silos):
        rng = np.random.default_rng(100 + k)
        X = rng.normal(size=(n_rows + 5 * k, 3)).astype(np.float32)
        X[:, 2] = rng.integers(0, 3, len(X))
        X[:3, 2] = np.arange(3)
        signal = X[:, 0] + (X[:, 2] == 1) + rng.normal(0, 0.3, len(X))
        y = np.asarray(signal, np.float64)
        if n_classes:
            edges = [0.3] if n_classes == 2 else [-0.2, 0.6]
            y = np.digitize(signal, edges).astype(np.float64)
        tables[f"silo-{k}"] = Dataset(schema, X, y)
    return tables


def _job(strategy: Any, task: Task, **booster: Any) -> JobParameters:
    if not isinstance(strategy, DPTree | FedGA):
        booster = {"max_depth": 2, "max_bin": 6, **booster}
    return JobParameters(
        "lies", strategy, task=task, seed=7, min_silos=3, booster=Booster(**booster)
    )


def _horizontal(strategy: Any, task: Task = Task.BINARY, **booster: Any) -> Variant:
    job = _job(strategy, task, **booster)
    job.parameters.validate(job)
    return Variant(job, _tables(task))


def _going_on(strategy: Any) -> Variant:
    """Return a job that starts from the model of one just like it."""
    first = _horizontal(strategy)
    made = first.run(UrgentLink, "first").artefact
    assert made is not None
    raw = made.files[MODEL_FILE]
    schema = first.tables["silo-0"].schema.digest
    told = WarmStart("first", hashlib.sha256(raw).hexdigest(), schema)
    return replace(first, job=replace(first.job, warm_start=told), starting_model=raw)


def _drawn(strategy: Any) -> Variant:
    """Return six silos in groups of three, which take turns."""
    tables = _tables(Task.BINARY, 6)
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
    "llr-leaves": lambda: _horizontal(_llr(combiner="leaves", secure=True)),
    "llr-ridge": lambda: _horizontal(
        _llr(combiner="ridge", shared_cuts=4, secure=True), Task.REGRESSION
    ),
    "llr-rates": lambda: _horizontal(_llr(combiner="logit_ridge", validation=0.3, scrub="none")),
    "hist-plain": lambda: _horizontal(_coarsely(rounds=2, secure=False)),
    "hist-secure": lambda: _horizontal(Histogram(rounds=2, binning="recursive", validation=0.2)),
    "hist-on": lambda: _going_on(_coarsely()),
    "hist-summary": lambda: _horizontal(_coarsely(), Task.REGRESSION),
    "hist-blind": lambda: _horizontal(
        _coarsely(blind_coordinator=True)
    ),
    "hist-coarse": lambda: _horizontal(
        _coarsely(coarse_bits=5, sampling="mvs", sampling_scope="global", filled_bins=True)
    ),
    "hist-single": lambda: _horizontal(
        _coarsely(dropout_recovery=False, growth="lossguide"), max_leaves=4
    ),
    "hist-drawn": lambda: _drawn(Histogram(rounds=3, silos_per_round=3, binning="summary")),
    "hist-classes": lambda: _horizontal(_coarsely(), Task.MULTICLASS),
    "fedga": lambda: _horizontal(
        FedGA(generations=2, population=4, max_depth=2, folds=2, finalists=2)
    ),
    "dp": lambda: _horizontal(DPTree(8.0, depth=2, bins=4)),
    "dp-candidates": lambda: _horizontal(DPTree(8.0, depth=2, bins=4, query="candidates")),
    "dp-quantile": lambda: _horizontal(DPTree(8.0, depth=2, bins=4, binning="quantile")),
    "simfl": lambda: _horizontal(SimFL(rounds=3)),
    "simfl-mean": lambda: _horizontal(SimFL(rounds=2, hashes=3), Task.REGRESSION),
    "vertical": lambda: _vertical(),
    "vertical-sets": lambda: _vertical(categories="sets", encryption="elgamal", fraction_bits=16),
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
