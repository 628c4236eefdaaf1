"""Vertical SecureBoost between two or more parties, with the real barrier and no transport."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.secureboost.routing import (
    margins,
    n_exchanges,
    router_of_active,
    router_of_passive,
)
from hedgerow.boosting.strategies.secureboost.steps import BATCH_DIVISIONS, batches
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.vault.local_vault import LocalVault
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
    "four hosts, elgamal": {
        "widths": [2, 1, 2, 1, 1], "encryption": "elgamal", "fraction_bits": 26, "n": 90,
    },
    "six hosts": {"widths": [2, 1, 1, 1, 1, 1, 2], "n": 120},
    "fifteen hosts": {"widths": [1] * 16, "n": 60, "encryption": "plain", "rounds": 1},
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
    "objective tweedie": {
        "task": Task.REGRESSION, "booster": {"objective": "tweedie"}, "positive": True,
    },
    "objective reg:gamma": {
        "task": Task.REGRESSION, "booster": {"objective": "reg:gamma"}, "positive": True,
    },
    "objective reg:squaredlogerror": {
        "task": Task.REGRESSION, "booster": {"objective": "reg:squaredlogerror"}, "positive": True,
    },
    "objective binary:hinge": {"booster": {"objective": "binary:hinge"}},
    "objective reg:logistic": {"task": Task.REGRESSION, "booster": {"objective": "reg:logistic"}},
    "objective multi:softmax": {
        "task": Task.MULTICLASS, "booster": {"objective": "multi:softmax"},
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_trees_are_those_of_the_joined_table(case: str) -> None:
    options: dict[str, Any] = {
        "widths": [3, 3], "n": 200, "task": Task.BINARY, "missing": 0.0, "booster": {},
        "positive": False,
    }  # fmt: skip
    changes = {k: v for k, v in CASES[case].items() if k not in options}
    options |= {k: v for k, v in CASES[case].items() if k in options}
    whole = vertical.table(
        options["n"], sum(options["widths"]), options["task"], missing=options["missing"]
    )
    if options["positive"]:
        whole = replace(whole, y=np.exp(whole.labels))
    if options["booster"].get("objective") == "reg:logistic":
        whole = replace(whole, y=1 / (1 + np.exp(-whole.labels)))
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


def test_quantised_gradients_under_elgamal_make_trees_about_as_good() -> None:
    whole = vertical.table(400, 6)
    parties = vertical.cut_by_columns(whole, [3, 3])
    exact, _ = run(vertical.job(rounds=3, encryption="plain"), parties)
    coarse, _ = run(vertical.job(rounds=3, encryption="elgamal"), parties)
    assert coarse.error is None, (coarse.error, coarse.errors)
    auc = [o.rounds[-1].metrics["train"]["auc"] for o in (exact, coarse)]
    assert abs(auc[0] - auc[1]) < 0.01


def test_elgamal_trains_classes_together() -> None:
    whole = vertical.table(200, 4, Task.MULTICLASS)
    job = vertical.job(Task.MULTICLASS, encryption="elgamal", multi_output=True, rounds=1)
    outcome, _ = run(job, vertical.cut_by_columns(whole, [2, 2]))
    assert outcome.error is None, (outcome.error, outcome.errors)
    assert outcome.rounds[-1].metrics["train"]["mlogloss"] < np.log(3)


def test_in_mix_mode_parties_take_turns_and_see_only_their_own_trees() -> None:
    whole = vertical.table(300, 6)
    parties = vertical.cut_by_columns(whole, [2, 2, 2])
    job = vertical.job(mode="mix", rounds=5, complete_secure=1, rounds_per_party=1)
    outcome, memories = run(job, parties)
    assert outcome.error is None, (outcome.error, outcome.errors)
    active, passive = vertical.parts(outcome.kept)
    owners = [{o for o in tree.owner if o >= 0} for tree in active.trees]
    assert owners == [{0}, {0}, {1}, {2}, {0}]
    assert {key.partition(":")[0] for key in passive["host-1"].nodes} == {"2"}
    assert {key.partition(":")[0] for key in passive["host-2"].nodes} == {"3"}
    assert not passive["host-1"].next_owner
    assert n_exchanges(active.trees) == 1
    rows = vertical.by_id(whole)
    visible = [[range(2)], [range(2)], [range(2, 4)], [range(4, 6)], [range(2)]]
    ensemble = vertical.pooled_by_levels(job, rows, visible)
    expected = ensemble.margins(xgb.DMatrix(rows.X)).reshape(-1, 1)
    assert vertical.joined(active, passive, [2, 2, 2]) == vertical.divisions(ensemble)
    assert np.abs(vertical.margins(memories["guest"], 4) - expected).max() < 1e-6


def test_in_layered_mode_the_passive_party_divides_above_and_the_active_one_below() -> None:
    whole = vertical.table(400, 6)
    parties = vertical.cut_by_columns(whole, [3, 3])
    job = vertical.job(mode="layered", host_depth=2, guest_depth=2, complete_secure=1, rounds=3)
    outcome, memories = run(job, parties)
    assert outcome.error is None, (outcome.error, outcome.errors)
    active, passive = vertical.parts(outcome.kept)
    assert {o for o in active.trees[0].owner if o >= 0} == {0}
    for tree in active.trees[1:]:
        depth = {0: 0}
        for node, left in enumerate(tree.left):
            if left >= 0:
                depth[left] = depth[left + 1] = depth[node] + 1
                assert tree.owner[node] == (1 if depth[node] < 2 else 0)
        assert max(depth.values()) == 4
    assert n_exchanges(active.trees) == 1
    # Routing by the parts gives what training has summed.
    routers = {
        "guest": router_of_active(active, 3, vertical.by_id(parties["guest"]).X),
        "host-1": router_of_passive(
            passive["host-1"], "guest", 3, vertical.by_id(parties["host-1"]).X
        ),
    }
    waiting = routers["host-1"].advance(routers["host-1"].roots())["guest"]
    assert not routers["guest"].advance({**routers["guest"].roots(), **waiting})
    got = margins(routers["guest"], active.trees, active.start(400, None))
    np.testing.assert_array_equal(got, vertical.margins(memories["guest"], 2))


LAYERED: dict[str, dict[str, Any]] = {
    "binary": {"missing": 0.1, "host_depth": 2, "guest_depth": 2},
    "binary, under encryption": {"host_depth": 1, "guest_depth": 2, "encryption": "paillier"},
    "several classes": {"task": Task.MULTICLASS, "host_depth": 2, "guest_depth": 1},
    "regression": {"task": Task.REGRESSION, "host_depth": 3, "guest_depth": 2, "missing": 0.1},
    "few leaves": {"booster": {"max_leaves": 6, "gamma": 0.5}, "host_depth": 3},
    "more rounds of the active party": {"complete_secure": 2, "host_depth": 2},
}


@pytest.mark.parametrize("case", LAYERED)
def test_layered_trees_are_those_of_a_pooled_engine_that_sees_columns_by_level(case: str) -> None:
    changes = {"complete_secure": 1, "rounds": 3, "encryption": "plain", **LAYERED[case]}
    task, missing = changes.pop("task", Task.BINARY), changes.pop("missing", 0.0)
    job = vertical.job(task, changes.pop("booster", {}), mode="layered", **changes)
    strategy = vertical.strategy(**changes)
    whole = vertical.table(300, 6, task, missing=missing)
    outcome, memories = run(job, vertical.cut_by_columns(whole, [3, 3]))
    guest, host = range(3), range(3, 6)
    alone = strategy.complete_secure
    visible = [
        [guest] if r < alone else [*[host] * strategy.host_depth, guest]
        for r in range(strategy.rounds)
    ]
    both = strategy.host_depth + strategy.guest_depth
    depths = [job.booster.max_depth if r < alone else both for r in range(strategy.rounds)]
    ensemble = vertical.pooled_by_levels(job, vertical.by_id(whole), visible, depths)
    check_equal(outcome, memories, ensemble, whole, [3, 3])


@pytest.mark.parametrize("most", [1, 3, 64])
def test_the_model_is_the_same_however_many_nodes_are_summed_at_a_time(most: int) -> None:
    whole = vertical.table(300, 6, Task.MULTICLASS, missing=0.1)
    booster = {"max_depth": 4}
    changes = {"multi_output": True, "fraction_bits": 50, "max_split_nodes": most}
    job = vertical.job(Task.MULTICLASS, booster, **changes)
    summed: list[int] = []
    read: list[int] = []

    class Counted(LocalVault):
        def sum_bins(self, session: str, nodes: Any, **options: Any) -> Any:
            summed.append(len(nodes))
            return super().sum_bins(session, nodes, **options)

        def decrypt_histograms(self, session: str, layout: Any, answer: Any, n: int) -> Any:
            read.append(n)
            return super().decrypt_histograms(session, layout, answer, n)

    made = {
        silo: Counted(engine=Engine(workers=1), insecure_test_keys=True)
        for silo in ("guest", "host-1")
    }
    outcome, memories = run(
        job, vertical.cut_by_columns(whole, [3, 3]), vaults=made.__getitem__, through_wire=True
    )
    ensemble = vertical.pooled(job, whole, 2, multi_output=True)
    check_equal(outcome, memories, ensemble, whole, [3, 3])
    # Four levels ask for 1, 1, 2 and 4 nodes; a node has up to 3 columns of 15 candidates.
    assert max(summed) == min(most, 4)
    assert len(summed) == len(read) == 2 * sum(-(-n // most) for n in (1, 1, 2, 4))
    assert max(read) <= min(most, 4) * 3 * 15


def test_without_a_number_of_nodes_their_candidates_bound_what_is_summed_at_a_time() -> None:
    sizes = [b.stop - b.start for b in batches(40, 1000)]
    assert sizes[0] * 1000 <= BATCH_DIVISIONS < (sizes[0] + 1) * 1000
    assert sum(min(b.stop, 40) - b.start for b in batches(40, 1000)) == 40
    assert batches(3, BATCH_DIVISIONS * 2) == [slice(0, 1), slice(1, 2), slice(2, 3)]


@pytest.mark.parametrize("encryption", ["paillier", "elgamal", "plain"])
def test_nodes_whose_sums_are_all_known_need_no_ciphertext(encryption: str) -> None:
    whole = vertical.table(60, 3)
    # The passive party's only column repeats the active one: below, nothing of it differs.
    whole.X[:, 0] = whole.X[:, 2] = np.arange(60) % 4
    job = vertical.job(
        encryption=encryption, booster={"max_depth": 6, "min_child_weight": 0}, rounds=2
    )
    outcome, _ = run(job, vertical.cut_by_columns(whole, [2, 1]))
    assert outcome.error is None, (outcome.error, outcome.errors)
