"""A vertical job with all halves in one process, without a network; CPU seconds by phase.

The real barrier and the codecs are between the halves, so bytes are those of the wire.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hedgerow.boosting.allowances import PartyLimits
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.ports import (
    Artefact,
    CoordinatorStart,
    JobParameters,
    SiloStart,
)
from hedgerow.boosting.strategies.secureboost.model import ActivePart, PassivePart
from hedgerow.boosting.strategies.secureboost.routing import (
    Router,
    n_exchanges,
    router_of_active,
    router_of_passive,
)
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers import paillier_roles
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.wire import BoxCodec, codec_of
from tests.federation.memory import MemoryLink

PHASES = {
    "encrypt_gradients": "encrypt",
    "hold_rows": "load",
    "sum_bins": "histogram",
    "decrypt_histograms": "decrypt",
}


class Phases:
    """CPU seconds by phase, of the threads that work in it; kernels use one core."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.bytes: Counter[str] = Counter()
        self.exchanges = 0
        self.began: dict[str, float] = {}
        self.scores: Mapping[str, Mapping[str, float]] = {}

    def timed(self, phase: str, call: Callable[..., Any], within: str = "") -> Callable[..., Any]:
        """Return a call whose CPU time counts as a phase, and not as the one around it."""

        def run(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                spent = time.thread_time() - began
                self.seconds[phase] += spent
                if within:
                    self.seconds[within] -= spent

        return run

    def vault(self) -> Any:
        """Return a vault whose calls are timed."""
        phases = self

        class Timed(LocalVault):
            def __getattribute__(self, name: str) -> Any:
                found = super().__getattribute__(name)
                return phases.timed(PHASES[name], found) if name in PHASES else found

        return Timed(engine=Engine(workers=1))


@dataclass
class Link(MemoryLink):
    """A silo's end without a network, through the codecs, with CPU seconds by phase."""

    phases: Phases = field(default_factory=Phases)

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        """Meet the coordinator."""
        self.phases.began.setdefault(step.name, time.perf_counter())
        began = time.thread_time()
        codec = codec_of(type(offer))
        frames = [(type(m), m.SerializeToString()) for m in codec.encode(offer)]
        self.phases.bytes[step.call.value] += sum(len(data) for _, data in frames)
        self.phases.exchanges += 1
        decoded = codec.decode(kind.FromString(data) for kind, data in frames)
        self.phases.seconds["send"] += time.thread_time() - began
        return self.meet(step, at, self.parcel(step, at, decoded))


def in_process(
    job: JobParameters,
    parties: Mapping[str, Dataset],
    tests: Mapping[str, Dataset] | None = None,
    model: Mapping[str, Artefact] | None = None,
    limits: PartyLimits | None = None,
) -> tuple[Phases, float, dict[str, Artefact]]:
    """Run a job with all halves in this process; return phases, wall seconds and parts.

    ``model`` has the parts of a model that the job finds under the name ``model``; ``limits`` are
    of every party's policy.
    """
    phases = Phases()
    silos = tuple(Silo(name) for name in sorted(parties))
    kept: dict[str, Artefact] = {}

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(len(silos) + 4))
        hub = Barrier(silos, silos, 600.0)
        schema = parties["guest"].schema

        def half(silo: Silo) -> None:
            start = SiloStart(
                job=job, job_id="b", attempt=1, silo=silo, silos=silos, schema=schema,
                dataset=parties[silo], test=(tests or {}).get(silo), codec=BoxCodec(),
                limits=limits or PartyLimits(), draws=job.seed,
            )  # fmt: skip
            records = {}
            if model is not None:
                records["kept:model/part.json"] = model[silo].files["part.json"]
            link = Link(silo, hub, loop, memory=records, phases=phases)
            found = job.strategy.participate(job.parameters, link, phases.vault(), start)
            if found is not None:
                kept[silo] = found

        tasks = [asyncio.create_task(asyncio.to_thread(half, silo)) for silo in silos]
        start = CoordinatorStart(
            job=job, job_id="b", attempt=1, silos=silos, schema=schema,
            n_samples={s: parties[s].n_samples for s in silos},
        )  # fmt: skip
        async for result in job.strategy.coordinate(job.parameters, hub, start):
            phases.scores = result.metrics
        await asyncio.gather(*tasks)

    pack = paillier_roles.pack_answer
    paillier_roles.pack_answer = phases.timed("compress", pack, within="histogram")
    began = time.perf_counter()
    try:
        asyncio.run(main())
    finally:
        paillier_roles.pack_answer = pack
    return phases, time.perf_counter() - began, kept


def datasets(pieces: Mapping[str, Any], label: str, task: Task) -> dict[str, Dataset]:
    """Return the parties' training tables as data sets."""
    found = {}
    for party in ("guest", "host"):
        table = pieces[party]
        features = [n for n in table.column_names if n.startswith(f"{party}__")]
        X = np.stack([np.asarray(table.column(n).to_numpy()) for n in features], axis=1)
        y = None
        if party == "guest":
            y = np.asarray(table.column(label).to_numpy(), np.float64)
        schema = Schema(
            tuple(Feature(n) for n in features), "" if y is None else label, task,
            2 if task is Task.BINARY else 0,
        )  # fmt: skip
        ids = np.array([str(i) for i in table.column("_id").to_pylist()], dtype=object)
        found[party] = Dataset(schema, np.ascontiguousarray(X, np.float32), y, ids=ids)
    return found


def synthetic(n: int, widths: list[int], zeros: float = 0.0) -> dict[str, Dataset]:
    """Return parties with normal columns and a label that depends on some of each.

    ``zeros`` is the share of values that are zero.
    """
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, sum(widths))).astype(np.float32)
    X[rng.random(X.shape) < zeros] = 0.0
    y = (X[:, :: max(sum(widths) // 8, 1)].sum(axis=1) + rng.normal(size=n) > 0).astype(np.float64)
    ids: NDArray[np.object_] = np.array([str(k) for k in range(n)], dtype=object)
    edges = np.cumsum([0, *widths])
    out = {}
    for k, width in enumerate(widths):
        name = f"host-{k}" if k else "guest"
        schema = Schema(
            tuple(Feature(f"{name}_{j}") for j in range(width)),
            "" if k else "label", Task.BINARY, 2,
        )  # fmt: skip
        part = np.ascontiguousarray(X[:, edges[k] : edges[k + 1]])
        out[name] = Dataset(schema, part, None if k else y, ids=ids)
    return out


def parts_of(kept: Mapping[str, Artefact], host: str) -> tuple[ActivePart, PassivePart]:
    """Return the parts that the active party and one passive party kept."""
    return (
        ActivePart.load(kept["guest"].files["part.json"]),
        PassivePart.load(kept[host].files["part.json"]),
    )


def routed(
    active: ActivePart, passive: PassivePart, guest: NDArray[Any], host: NDArray[Any]
) -> Router:
    """Return the active party's router after all rows have come to leaves."""
    n_trees = len(active.trees)
    ours = router_of_active(active, n_trees, guest)
    theirs = router_of_passive(passive, active.party, n_trees, host)
    waiting, there = ours.roots(), theirs.roots()
    for _ in range(n_exchanges(active.trees)):
        out, back = ours.advance(waiting), theirs.advance(there)
        waiting, there = back.get(active.party, {}), out.get(passive.party, {})
    ours.advance(waiting)
    return ours


def read_tables(path: Any, label: str, seed: int = 1, test: float = 0.2) -> dict[str, Any]:
    """Return the parties' training and test tables of a FATE file, by name."""
    import pyarrow as pa

    whole = pq.read_table(path)
    if "_id" not in whole.column_names:
        whole = whole.append_column("_id", pa.array(np.arange(whole.num_rows)))
    rng = np.random.default_rng(seed)
    order = rng.permutation(whole.num_rows)
    n_test = int(test * whole.num_rows)
    out = {}
    for party in ("guest", "host"):
        own = [n for n in whole.column_names if n.startswith(f"{party}__")]
        columns = ["_id", *([label] if party == "guest" else []), *own]
        out[f"test-{party}"] = whole.select(columns).take(np.sort(order[:n_test]))
        out[party] = whole.select(columns).take(np.sort(order[n_test:]))
    return out
