"""Rows that silos draw by a rule that a coordinator knows: totals of many rounds are equations.

With leaves near 0 the gradients are the same in every round, so that each round's root total is a
sum of single rows' gradients, with the sample as coefficients. The model alone tells these totals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hedgerow.boosting import streams, warm_start
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.job import Booster, ColumnRules
from hedgerow.boosting.ports import JobParameters, SiloStart
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost
from hedgerow.boosting.strategies.simfl.parameters import SimFL
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.crypto.ciphers.key_files import KeyFolder, SealingSecret
from hedgerow.crypto.vault.local_vault import LocalVault
from tests import oracles
from tests.adversary.arena import UrgentLink, UrgentLoop
from tests.federation.histograms import job_of, model_of, run, silos_of

SIZES = (10, 12, 14)
ROUNDS = 60
ETA = 1e-9
DATA = oracles.generated(Task.BINARY, sum(SIZES))
JOB = job_of(
    Histogram(ROUNDS, sampling="uniform", sampling_rate=0.5, binning="summary", min_cell=5),
    Task.REGRESSION,
    Booster(max_depth=1, max_bin=8, eta=ETA, lambda_=1.0, min_child_weight=0.0),
    min_silos=3,
)


def labels_found(draws: Callable[[LocalVault, JobParameters, str], streams.Seed]) -> int:
    """Return how many labels the coordinator finds, of silos whose draws follow from that."""

    def as_agent(_: Any, link: Any, vault: Any, start: SiloStart) -> Any:
        own = draws(vault, start.job, start.dataset.digest)
        return warm_start.participate(link, vault, replace(start, draws=own))

    schema = replace(DATA.schema, task=Task.REGRESSION, n_classes=0, classes=())
    labels = DATA.labels.astype(np.float64)
    silos = silos_of(Dataset(schema, DATA.X, labels), SIZES)
    outcome = run(
        JOB, silos, participate_as=as_agent, make_link=UrgentLink, make_loop=UrgentLoop
    )  # fmt: skip
    model = model_of(outcome)
    assert len(model.trees) == ROUNDS
    base = float(model.base_margins(1).reshape(-1)[0])
    sums = [_gradients(tree) for tree in model.trees]
    known = np.stack([_coefficients(round_) for round_ in range(ROUNDS)])
    solved = base - np.linalg.lstsq(known, np.array(sums), rcond=None)[0]
    return int((np.round(solved) == labels).sum())


def _gradients(tree: Any) -> float:
    """Return the sum of gradients that a tree's leaf values were computed from."""
    leaves = np.flatnonzero(tree.is_leaf)
    return float(-(tree.weight[leaves].ravel() / ETA * (tree.cover[leaves] + 1.0)).sum())


def _coefficients(round_: int) -> NDArray[np.float64]:
    """Return the weight of each silo's rows in a round, as the job's seed says."""
    kept = []
    for silo, n_rows in enumerate(SIZES):
        rng = generator(JOB.seed, silo, round_, Purpose.SAMPLING)
        kept.append((rng.random(n_rows) < 0.5) / 0.5)
    return np.concatenate(kept)


def test_totals_of_many_rounds_are_no_equations_in_rows() -> None:
    assert labels_found(lambda vault, job, table: job.seed) == sum(SIZES), "else no attack"
    found = labels_found(streams.own_draws)
    assert found <= 0.8 * sum(SIZES), "no more than guesses find"


@pytest.mark.parametrize(
    "parameters",
    [
        Histogram(3), Bagging(3), SimFL(3), FedGA(), FedXGBllr(trees=3),
        SecureBoost("host", 3),
    ],
    ids=lambda one: one.name,
)  # fmt: skip
def test_draws_are_the_silos_secret_and_the_same_after_a_restart(
    parameters: Any, tmp_path: Path
) -> None:
    def vault(silo: str) -> LocalVault:
        folder = KeyFolder(tmp_path / silo, SealingSecret("key file", b"s" * 32))
        return LocalVault(Random(silo).randbytes, noise_folder=folder)

    job = JobParameters("draws", parameters, seed=3)
    own = streams.own_draws(vault("ash"), job, "table")
    assert streams.own_draws(vault("ash"), job, "table") == own
    assert streams.own_draws(vault("birch"), job, "table") != own
    assert streams.own_draws(vault("ash"), job, "other table") != own
    nearly = [replace(job, seed=4), replace(job, booster=Booster(subsample=0.99))]
    nearly += [replace(job, columns=ColumnRules(weight="w"))]
    nearly += [replace(job, columns=ColumnRules(class_weight=(("a", 0.999),)))]
    if isinstance(parameters, Histogram | Bagging):
        nearly.append(replace(job, parameters=replace(parameters, validation=0.01)))
        slower = replace(job, booster=Booster(eta=0.01))
        assert streams.own_draws(vault("ash"), slower, "table").split == own.split
        nearly.append(slower)
        more = replace(job, parameters=replace(parameters, rounds=5))
        assert streams.own_draws(vault("ash"), more, "table") == own, "as it may go on from this"
    for other in nearly:
        assert streams.own_draws(vault("ash"), other, "table") != own
    states = {
        generator(own, place, round_, purpose).bytes(16)
        for place in (0, 1)
        for round_ in (0, 1)
        for purpose in (Purpose.SAMPLING, Purpose.ROUNDING)
    }
    assert len(states) == 4, "by round and purpose, and not by the place in a roster"
    assert streams.xgboost_seed(own, 0, 0, Purpose.XGBOOST) != streams.xgboost_seed(
        job.seed, 0, 0, Purpose.XGBOOST
    )
