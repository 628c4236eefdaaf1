"""What ``hedgerow plan`` says of histogram boosting, against what a job moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from benchmarks.secure_sums import make_identities
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.exchange import ExchangeKey, Silo, Step
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.steps import REVEALS
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.identity.peers import FileIdentity
from tests.federation.histograms import job_of, plain_job, silos_of
from tests.federation.memory import MemoryLink, run_in_memory

SIZES = (1000, 800, 600, 400, 200)


@pytest.fixture(scope="module")
def silos() -> dict[str, Dataset]:
    """Smooth features, so that every feature has all its bins and trees grow full."""
    rng = np.random.default_rng(4)
    schema = Schema(tuple(Feature(f"f{j}") for j in range(6)), "label", Task.BINARY, 2)
    X = rng.normal(size=(sum(SIZES), 6)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=len(X)) > 0).astype(np.float64)
    return silos_of(Dataset(schema, X, y), SIZES)


@pytest.fixture(scope="module")
def identities(
    silos: dict[str, Dataset], tmp_path_factory: pytest.TempPathFactory
) -> dict[Silo, FileIdentity]:
    return make_identities(tmp_path_factory.mktemp("pki"), tuple(Silo(s) for s in silos))


OF_LABELS: dict[str, Any] = {"objective": "reg:absoluteerror"}


def of_numbers(own: Dataset) -> Dataset:
    """Return a table with smooth labels."""
    schema = replace(own.schema, task=Task.REGRESSION, n_classes=0)
    return Dataset(schema, own.X, (own.X[:, 0] + own.X[:, 1]).astype(np.float64))


def of_times(own: Dataset) -> Dataset:
    """Return a table of numbers as one of times, of which every third is censored."""
    time = np.exp(own.labels)
    upper = np.where(np.arange(len(time)) % 3 > 0, time, np.inf)
    schema = replace(own.schema, task=Task.SURVIVAL)
    return Dataset(schema, own.X, np.stack([time, upper], axis=1))


class CountingLink(MemoryLink):
    """Counts the frames' bytes by kind, as they would travel, of one silo or of all."""

    everyone: ClassVar[bool] = False
    up: ClassVar[Counter[str]] = Counter()
    down: ClassVar[Counter[str]] = Counter()

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        from hedgerow.services.rpc.exchange import KINDS, framed, serialised

        reply = super().exchange(step, at, offer)
        names = {"job_id": "job-1234567", "attempt": 1, "kind": KINDS[step.call]}
        up = sum(map(len, framed(step.name, at, serialised(offer), **names)))
        down = sum(map(len, framed(step.name, at, serialised(reply))))
        if self.everyone or self.silo == "silo-0":
            self.up[step.call.value] += up
            self.down[step.call.value] += down
        return reply


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"ring_bits": 48},
        {"coarse_bits": 5},
        {"binning": "recursive"},
        {"secure": False},
        {"dropout_recovery": False},
        {"validation": 0.3},
        {"weighted": True},
        {"early_stopping_rounds": 6},
        {"max_split_nodes": 3},
        {"bins_policy": "pax_printed", "pax_epsilon": 0.05},
        {"objective": "reg:absoluteerror"},
        {"objective": "survival:cox"},
        {"silos_per_round": 4},
        {"silos_per_round": 3, "secure": False, "coarse_bits": 5},
        {"binning": "recursive", "binning_error": 1e-2, "blind_coordinator": True},
    ],
)
def test_the_forecast_is_within_a_tenth_of_what_travels(
    fields: dict[str, Any], silos: dict[str, Dataset], identities: dict[Silo, FileIdentity]
) -> None:
    if fields.get("weighted"):
        weights = np.random.default_rng(0).lognormal(0, 2, 1000)
        silos = {silo: replace(own, weight=weights[: own.n_samples]) for silo, own in silos.items()}
    others = ("weighted", "objective")
    job = plain_job(rounds=6, **{k: v for k, v in fields.items() if k not in others})
    if "objective" in fields:
        job = replace(job, task=Task.REGRESSION, booster=Booster(max_depth=3, **OF_LABELS))
        silos = {silo: of_numbers(own) for silo, own in silos.items()}
        if fields["objective"] == "survival:cox":
            booster = replace(job.booster, objective="survival:cox")
            names = ("cox-nloglik", "c-index", "integrated-brier")
            job = replace(job, task=Task.SURVIVAL, booster=booster, metrics=names)
            silos = {silo: of_times(own) for silo, own in silos.items()}
    drawn = "silos_per_round" in fields
    mean = drawn or "pax_epsilon" in fields
    names = tuple(silos) if drawn else ()
    booster = replace(job.booster, max_bin=64, min_child_weight=0.0)
    job = replace(job, booster=booster, silos=names)
    CountingLink.everyone = mean
    CountingLink.up.clear()
    CountingLink.down.clear()
    blind = bool(fields.get("blind_coordinator"))
    job = replace(job, has_test=not blind)
    outcome = run_in_memory(
        job,
        silos,
        vaults=lambda _: LocalVault(),
        identities=lambda silo: identities[Silo(silo)],
        make_link=CountingLink,
        test=None if blind else silos["silo-0"],
    )
    assert not outcome.errors
    assert outcome.error is None
    rows = {Silo(silo): data.n_samples for silo, data in silos.items()}
    told = job.strategy.forecast(job.parameters, job, silos["silo-0"].schema, rows)
    if mean:
        for counted in (CountingLink.up, CountingLink.down):
            for call in counted:
                counted[call] //= len(silos)
    for way, moved in ((1, CountingLink.up), (2, CountingLink.down)):
        planned = sum(step[way] for step in told.steps.values())
        # How many values are counted until cut points are found depends on the values, and the
        # bits of sums on how the weights are spread.
        rel = 0.15 if fields in ({"binning": "recursive"}, {"weighted": True}) else 0.1
        assert planned == pytest.approx(sum(moved.values()), rel=rel), (dict(moved), told.steps)
    name = "ExchangeHistograms"
    rel = 0.2 if "weighted" in fields else 0.1
    assert told.steps[name][1] == pytest.approx(CountingLink.up[name], rel=rel)


def test_the_forecast_is_the_formula_of_full_trees() -> None:
    features = tuple(Feature(f"f{j}") for j in range(28))
    schema = Schema(features, "label", Task.BINARY, 2)
    job = job_of(Histogram(rounds=1, filled_bins=True), Task.BINARY, Booster(max_depth=8))
    rows = {Silo(f"silo-{i}"): 200_000 for i in range(5)}
    told = job.strategy.forecast(job.parameters, job, schema, rows)
    _, up, down = told.steps["ExchangeHistograms"]
    assert up == pytest.approx(6.19e6, rel=0.05)  # benchmarks.histogram, synthetic
    assert down == pytest.approx(75e3, rel=0.3)
    assert "survival:cox" in REVEALS
    assert "cox" not in told.reveals
    assert "With secure sums every silo" in told.reveals
    assert "With secure = false" not in told.reveals
    smaller = replace(job, parameters=Histogram(rounds=1, coarse_bits=5, filled_bins=True))
    up_5 = smaller.strategy.forecast(smaller.parameters, smaller, schema, rows).steps[
        "ExchangeHistograms"
    ][1]
    assert up_5 == pytest.approx(2.5e6, rel=0.1)
