"""Jobs of histogram boosting in memory, and their pooled twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.plan import Setup
from hedgerow.boosting.strategies.histogram.stored import RoundCheckpoint
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.boosting.trees.loading import load
from hedgerow.crypto.vault.local_vault import LocalVault
from tests import oracles
from tests.boosting.sums.federation_of_sums import Authority, TestIdentity
from tests.federation.memory import Outcome, run_in_memory
from tests.pooled import Training, train_pooled

AUTHORITY = Authority()


def silos_of(data: Dataset, sizes: tuple[int, ...]) -> dict[str, Dataset]:
    edges = np.cumsum((0, *sizes))
    return {f"silo-{i}": data.take(np.arange(edges[i], edges[i + 1])) for i in range(len(sizes))}


def job_of(strategy: Histogram, task: Task, booster: Booster, **other: object) -> JobParameters:
    return JobParameters(
        "test",
        strategy,
        task=task,
        seed=11,
        booster=booster,
        step_timeout_seconds=10.0,
        **other,  # type: ignore[arg-type]
    )


def run(job: JobParameters, silos: dict[str, Dataset], **other: object) -> Outcome:
    identities = {silo: TestIdentity(AUTHORITY, silo) for silo in silos}
    return run_in_memory(
        job,
        silos,
        vaults=lambda _: LocalVault(),
        identities=lambda silo: identities[silo],
        **other,  # type: ignore[arg-type]
    )


def model_of(outcome: Outcome) -> Ensemble:
    assert outcome.error is None, outcome.error
    assert outcome.artefact is not None
    return load(outcome.artefact.files["model.ubj"])


def same(a: Ensemble, b: Ensemble) -> bool:
    names = ("left", "feature", "threshold", "default_left", "gain", "cover", "weight")
    return len(a.trees) == len(b.trees) and all(
        np.array_equal(getattr(x, name), getattr(y, name))
        for x, y in zip(a.trees, b.trees, strict=True)
        for name in names
    )


def opening_of(outcome: Outcome, data: Dataset) -> Setup:
    state = RoundCheckpoint.decode(outcome.rounds[-1].checkpoint).state
    assert state is not None
    return Setup.of(state.terms, data.schema, 1 + len(state.terms.more_scores))


def pooled_of(
    job: JobParameters, data: Dataset, outcome: Outcome, sizes: tuple[int, ...], **other: object
) -> Ensemble:
    strategy = job.parameters
    assert isinstance(strategy, Histogram)
    plain = replace(job, booster=strategy.booster_of(job))
    return train_pooled(
        plain,
        data,
        len(outcome.rounds),
        Training(
            cuts=opening_of(outcome, data).cuts,
            sampler=strategy.sampler,
            blocks=sizes,
            multi_output=strategy.multi_output,
            coarse_bits=strategy.coarse_bits,
            ring_bits=strategy.ring_bits,
            fraction_bits=strategy.fraction_bits,
            min_cell=strategy.min_cell,
            **other,  # type: ignore[arg-type]
        ),
    )


def plain_job(rounds: int = 4, **strategy: object) -> JobParameters:
    booster = Booster(max_depth=3, max_bin=16)
    kind = Histogram(rounds=rounds, **{"binning": "summary", **strategy})  # type: ignore[arg-type]
    return replace(job_of(kind, Task.BINARY, booster, min_silos=3), max_close_sums=9)


DATA = oracles.generated(Task.BINARY, 1500)
