"""Vertical SecureBoost between two or more parties, with the real rendezvous and no transport."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xgboost as xgb

from boosting.dataset import Task
from boosting.ensemble import Ensemble
from boosting.job import JobParameters
from tests.federation import vertical
from tests.federation.memory import Outcome, run_in_memory


def run(
    job: JobParameters, parties: dict[str, Any], **options: Any
) -> tuple[Outcome, dict[str, dict[str, bytes]]]:
    memories: dict[str, dict[str, bytes]] = options.pop("memories", {silo: {} for silo in parties})
    outcome = run_in_memory(
        job,
        parties,
        schema=parties["guest"].schema,
        vaults=options.pop("vaults", vertical.vaults()),
        memories=memories,
        **options,
    )
    return outcome, memories


def check_equal(
    outcome: Outcome,
    memories: dict[str, dict[str, bytes]],
    ensemble: Ensemble,
    whole: Any,
    widths: list[int],
) -> None:
    assert outcome.error is None, outcome.error
    assert not outcome.errors, outcome.errors
    active, passive = vertical.parts(outcome.kept)
    # A tree with vector leaves is as many trees of one shape in the pooled engine's file.
    together = len(active.trees[0].groups)
    assert vertical.joined(active, passive, widths) == vertical.divisions(ensemble)[::together]
    rows = vertical.by_id(whole)
    expected = ensemble.margins(xgb.DMatrix(rows.X))
    got = vertical.margins(memories["guest"], len(outcome.rounds) - 1, whole.schema.n_outputs)[
        : rows.n_samples
    ]
    assert np.abs(got - expected.reshape(got.shape)).max() < 1e-6


def test_two_parties_make_the_trees_of_the_joined_table() -> None:
    whole = vertical.table(300, 6)
    job = vertical.job()
    outcome, memories = run(job, vertical.cut_by_columns(whole, [3, 3]), through_wire=True)
    check_equal(outcome, memories, vertical.pooled(job, whole, 2), whole, [3, 3])
    active, passive = vertical.parts(outcome.kept)
    assert {o for tree in active.trees for o in tree.owner} == {-1, 0, 1}
    assert passive["host-1"].digest == active.digest


CASES: dict[str, dict[str, Any]] = {
    "complete secure": {"complete_secure": 1, "rounds": 3},
    "three hosts": {"widths": [2, 2, 2, 3]},
    "missing values": {"missing": 0.2, "widths": [3, 2, 3]},
    "goss": {"sampling": "goss", "n": 400},
    "mvs": {"sampling": "mvs"},
    "classes one by one": {"task": Task.MULTICLASS},
    "classes together": {"task": Task.MULTICLASS, "multi_output": True},
    "classes together, in several ciphertexts": {
        "task": Task.MULTICLASS, "multi_output": True, "fraction_bits": 50,
    },
    "regression": {"task": Task.REGRESSION},
    "loss guided": {"booster": {"grow_policy": "lossguide", "max_leaves": 6, "max_depth": 4}},
    "aligned already": {"alignment": "digest"},
    "in the clear": {"encryption": "plain", "missing": 0.1},
    "regularised": {"booster": {"alpha": 0.3, "lambda_": 2.0, "gamma": 0.2, "min_child_weight": 3}},
    **{
        f"objective {name}": {"task": Task.REGRESSION, "booster": {"objective": name}, "rounds": 1}
        for name in ("lse", "lae", "huber", "fair", "log_cosh")
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_trees_are_those_of_the_joined_table(case: str) -> None:
    options: dict[str, Any] = {
        "widths": [3, 3], "n": 200, "task": Task.BINARY, "missing": 0.0, "booster": {},
    }  # fmt: skip
    changes = {k: v for k, v in CASES[case].items() if k not in options}
    options |= {k: v for k, v in CASES[case].items() if k in options}
    whole = vertical.table(
        options["n"], sum(options["widths"]), options["task"], missing=options["missing"]
    )
    strategy = vertical.strategy(**changes)
    job = vertical.job(options["task"], options["booster"], **changes)
    parties = vertical.cut_by_columns(whole, options["widths"])
    if strategy.alignment == "digest":
        parties = {name: vertical.by_id(party) for name, party in parties.items()}
    outcome, memories = run(job, parties)
    ensemble = vertical.pooled(
        job,
        whole,
        strategy.rounds,
        sampler=strategy.sampler(job.booster),
        multi_output=strategy.multi_output,
        alone=strategy.complete_secure,
        n_alone=options["widths"][0],
    )
    check_equal(outcome, memories, ensemble, whole, options["widths"])
