"""Every parameter of every strategy: changed, it is seen in the result, or refused."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster, ColumnRules
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.explore.parameters import Explore
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost
from hedgerow.boosting.strategies.simfl.parameters import SimFL
from hedgerow.boosting.tables import for_job
from hedgerow.boosting.trees.local import check_device
from hedgerow.services.wire import codec_of
from tests import oracles
from tests.boosting.sums.federation_of_sums import Authority, TestIdentity
from tests.federation import vertical
from tests.federation.memory import MemoryLink, Outcome, run_in_memory
from tests.federation.test_secureboost_models import kept

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None, reason="the networks of FedXGBllr need the torch extra"
)

BOOSTER: dict[str, tuple[Any, dict[str, Any]]] = {
    # Another value, and what must be set beside it.
    "objective": ("reg:pseudohubererror", {"task": Task.REGRESSION}),
    "eta": (0.1, {}),
    "gamma": (5.0, {}),
    "max_depth": (2, {}),
    "max_leaves": (3, {}),
    "grow_policy": ("lossguide", {"max_leaves": 4}),
    "min_child_weight": (8.0, {}),
    "max_delta_step": (0.1, {}),
    "subsample": (0.5, {}),
    "sampling_method": ("gradient_based", {}),
    "colsample_bytree": (0.5, {}),
    "colsample_bylevel": (0.5, {}),
    "colsample_bynode": (0.5, {}),
    "lambda_": (9.0, {}),
    "alpha": (2.0, {}),
    "tree_method": ("approx", {"max_bin": 8}),
    "max_bin": (4, {}),
    "scale_pos_weight": (3.0, {}),
    "num_parallel_tree": (2, {}),
    "max_cat_to_onehot": (8, {}),
    "max_cat_threshold": (1, {}),
    "base_score": (0.2, {"task": Task.REGRESSION}),
    "monotone_constraints": ((-1, 0, 0, 0, 0), {}),
    "increasing": (("x0",), {}),
    "decreasing": (("x0",), {}),
    "interaction_constraints": ((("x0", "x1"), ("x2",)), {}),
    "tweedie_variance_power": (1.2, {"objective": "reg:tweedie", "task": Task.REGRESSION}),
    "huber_slope": (0.2, {"objective": "reg:pseudohubererror", "task": Task.REGRESSION}),
    "quantile_alpha": (
        0.9,
        {"objective": "reg:quantileerror", "task": Task.REGRESSION, "min_child_weight": 10.0},
    ),
    "more_alphas": (
        (0.9,),
        {"objective": "reg:quantileerror", "task": Task.REGRESSION, "min_child_weight": 10.0},
    ),
    "loss": ("(margin - label)**4", {"task": Task.REGRESSION}),
    "hessian": ("3", {"loss": "(margin - label)**2 / 2", "task": Task.REGRESSION}),
    "aft_loss_distribution": ("logistic", {"task": Task.SURVIVAL}),
    "aft_loss_distribution_scale": (0.5, {"task": Task.SURVIVAL}),
    "lambdarank_num_pair_per_sample": (1, {"task": Task.RANKING}),
    "lambdarank_score_normalization": (False, {"task": Task.RANKING}),
    "device": ("cuda", {}),
    "fair_c": (3.0, {"objective": "fair", "task": Task.REGRESSION}),
}


@dataclass(frozen=True)
class Case:
    """A strategy to try: quick parameters, and another value of each with its surroundings."""

    quick: Any
    changes: dict[str, tuple[Any, dict[str, Any]]]
    unseen: dict[str, str] = field(default_factory=dict)
    booster: dict[str, Any] = field(default_factory=dict)
    """Of all its jobs that do not say otherwise: what keeps them small."""


GIVEN = {"binning": "given", "cut_points": tuple(f"x{i}: 0.3" for i in range(4))}
_STOPPING = {"rounds": 12, "validation": 0.3}
CASES = {
    "bagging": Case(
        Bagging(rounds=2),
        {
            "rounds": (3, {}),
            "trees_per_round": (2, {}),
            "lr_mode": ("uniform", {}),
            "eta_total": (0.9, {"lr_mode": "total", "eta_total": 0.3}),
            "silos_per_round": (2, {}),
            "scrub": ("none", {"scrub": "stats"}),
            "mode": ("cyclic", {}),
            "validation": (0.3, {}),
            "early_stopping_rounds": (1, _STOPPING | {"eta": 1.0}),
            "evaluate": ("none", {}),
            "secure_mean": (False, {"task": Task.REGRESSION}),
            "leaf_bound": (0.05, {}),
        },
    ),
    "histogram": Case(
        Histogram(rounds=2),
        {
            "rounds": (3, {}),
            "secure": (False, {}),
            "dropout_recovery": (False, {}),
            "blind_coordinator": (True, {}),
            "threshold": (4, {}),
            "binning": ("summary", {}),
            "cut_points": (tuple(f"x{i}: -0.5 0 0.5" for i in range(4)), GIVEN),
            "binning_error": (0.05, {}),
            "min_cell": (200, {}),
            "bins_policy": ("pax_printed", {"binning": "summary", "max_bin": 8}),
            "pax_epsilon": (
                0.9,
                {"binning": "summary", "bins_policy": "pax_printed", "max_bin": 64},
            ),
            "growth": ("lossguide", {"max_leaves": 4}),
            "max_split_nodes": (1, {}),
            "multi_output": (True, {"task": Task.MULTICLASS}),
            "sampling": ("goss", {}),
            "sampling_rate": (0.3, {"sampling": "uniform"}),
            "sampling_scope": ("global", {"sampling": "mvs"}),
            "reweight": (False, {"sampling": "uniform"}),
            "mvs_lambda": (5.0, {"sampling": "mvs"}),
            "top_rate": (0.5, {"sampling": "goss"}),
            "other_rate": (0.3, {"sampling": "goss"}),
            "coarse_bits": (3, {}),
            "fraction_bits": (16, {}),
            "filled_bins": (True, {}),
            "ring_bits": (48, {"coarse_bits": 3}),
            "validation": (0.3, {}),
            "validation_tables": (True, {}),
            "etas": ((0.5, 0.1), {}),
            "class_start": (True, {"task": Task.MULTICLASS}),
            "one_output_rounds": ((1,), {"task": Task.MULTICLASS, "multi_output": True}),
            "feature_weights": ((1.0, 0.0, 2.0, 1.0, 1.0), {"colsample_bytree": 0.5}),
            "base_margin": (("x0", "x1"), {}),
            "gradients": ("mine 0123", {"validation": 0.3}),
            "interval": (0.8, {"task": Task.REGRESSION, "validation": 0.3}),
            "early_stopping_rounds": (1, _STOPPING | {"eta": 1.0}),
            "tol": (9.0, {"rounds": 12, "early_stopping_rounds": 2}),
            "silos_per_round": (3, {"silos": tuple(f"silo-{k}" for k in range(4))}),
        },
        {"threshold": "who must agree to an unmasking shows when silos are lost"},
        {"max_bin": 16, "max_depth": 4},
    ),
    "fedga": Case(
        FedGA(generations=3, population=8, max_depth=3, epsilon_rows=1e12),
        {
            "generations": (4, {}),
            "population": (10, {}),
            "min_depth": (3, {"task": Task.REGRESSION}),
            "max_depth": (2, {}),
            "folds": (2, {"population": 40, "min_depth": 1, "max_depth": 6}),
            "tournament": (8, {}),
            "crossover_rate": (0.0, {}),
            "mutation_rate": (1.0, {}),
            "flip_share": (1.0, {"mutation_rate": 1.0}),
            "swap_share": (1.0, {"mutation_rate": 1.0}),
            "leaf_share": (0.8, {}),
            "epsilon_rows": (0.01, {}),
            "validation_share": (0.6, {"task": Task.REGRESSION, "noise_limit": 0.0}),
            "noise_limit": (1e9, {"task": Task.REGRESSION, "complexity_limit": 0.0}),
            "complexity_limit": (1e9, {"task": Task.REGRESSION, "noise_limit": 1e9}),
            "distinct_limit": (1.0, {"task": Task.REGRESSION}),
            "participation": (0.5, {}),
            "patience": (1, {"generations": 12}),
            "min_leaf": (25, {}),
            "rescore_parents": (True, {"participation": 0.5, "generations": 5}),
            "categorical_order": ("ordinal", {}),
            "metric": ("accuracy", {}),
            "node_cost": (0.3, {}),
            "finalists": (1, {"node_cost": 0.0}),
            "paper": (True, {"generations": 6}),
        },
    ),
    "dp_tree": Case(
        DPTree(epsilon=1e12, depth=2),
        {
            "epsilon": (1.0, {}),
            "depth": (3, {}),
            "bins": (3, {}),
            "honest": (3, {}),
            "secure": (False, {}),
            "binning": ("quantile", {}),
            "binning_share": (0.7, {}),
            "query": ("candidates", {}),
        },
        {"honest": "how much noise each silo adds is random to an observer"},
    ),
    "private_boost": Case(
        # Without noise, which no two runs have alike: what needs a budget is refused here.
        PrivateBoost(trees=12, depth=2, trees_per_exchange=2),
        {
            "epsilon": (1.0, {}),
            "delta": (1e-6, {}),
            "reason": ("a rehearsal", {}),
            "trees": (6, {}),
            "depth": (3, {}),
            "trees_per_exchange": (3, {}),
            "structure": ("cyclic", {}),
            "splits": ("node", {}),
            "bins": (4, {}),
            "step": (0.5, {}),
            "damping": (50.0, {}),
            "shrinkage": (0.5, {}),
            "clip": (0.1, {"task": Task.REGRESSION}),
            "honest": (3, {}),
            "repeats": (9, {}),
            "secure": (False, {}),
            "dropout_recovery": (False, {}),
        },
    ),
    "secureboost": Case(
        SecureBoost("guest", rounds=2, encryption="plain", allow_insecure=True, alignment="digest"),
        {
            "active": ("host-1", {}),
            "rounds": (3, {}),
            "encryption": ("elgamal", {}),
            "key_bits": (3072, {"encryption": "paillier", "rounds": 1, "max_depth": 1}),
            "mode": ("mix", {}),
            "complete_secure": (1, {}),
            "multi_output": (True, {"task": Task.MULTICLASS}),
            "sampling": ("goss", {}),
            "sampling_rate": (0.3, {"sampling": "uniform"}),
            "top_rate": (0.5, {"sampling": "goss"}),
            "other_rate": (0.3, {"sampling": "goss"}),
            "alignment": ("psi", {}),
            "binning_error": (0.1, {"max_bin": 4}),
            "fraction_bits": (6, {}),
            "min_leaf": (30, {}),
            "max_purity": (0.7, {}),
            "max_split_nodes": (1, {}),
            "rounds_per_party": (2, {"mode": "mix"}),
            "passive_trees": ("structure", {"mode": "mix"}),
            "host_depth": (1, {"mode": "layered"}),
            "guest_depth": (1, {"mode": "layered"}),
            "validation": (0.3, {}),
            "validation_tables": (True, {}),
            "early_stopping_rounds": (1, _STOPPING | {"eta": 1.0}),
            "calibrate": (True, {"validation": 0.3}),
            "categories": ("sets", {}),
            "information": (True, {"rounds": 10}),
            "inference": ("eini", {"predict_from": "model", "encryption": "elgamal"}),
            "predict_from": ("model", {}),
            "warm_start": ("model", {}),
            "weight": ("w", {}),
            "base_margin": (("m",), {}),
            "increasing": (("guest:x0",), {}),
            "decreasing": (("host-1:x3",), {}),
            "interaction_constraints": ((("guest:x0", "guest:x1"), ("host-1:x3",)), {}),
            "allow_insecure": (False, {}),
        },
    ),
    "explore": Case(Explore(), {"bins": (5, {}), "min_cell": (60, {})}),
    "simfl": Case(
        SimFL(rounds=2),
        {"rounds": (3, {}), "hashes": (9, {}), "width": (0.3, {})},
    ),
    "fedxgbllr": Case(
        FedXGBllr(trees=8, rounds=1, epochs=1),
        {
            "trees": (12, {}),
            "rounds": (2, {}),
            "epochs": (2, {}),
            "batch_size": (32, {}),
            "combiner": ("dense", {}),
            "channels": (8, {}),
            "learning_rate": (0.1, {}),
            "beta1": (0.9, {}),
            "beta2": (0.5, {}),
            "penalty": (5.0, {"combiner": "logit_ridge", "epochs": 10}),
            "validation": (0.3, {}),
            "early_stopping_rounds": (1, _STOPPING | {"learning_rate": 1.0}),
            "paper": ("text", {}),
            "center_target": (False, {"task": Task.REGRESSION}),
            "scale_target": (True, {"task": Task.REGRESSION}),
            "secure": (True, {"min_silos": 3}),
            "scrub": ("none", {}),
            "share_penalties": (True, {"gamma": 3.0}),
            "shared_cuts": (4, {}),
            "leaf_bits": (16, {}),
            "weight_bits": (8, {}),
        },
    ),
}


def table(seed: int, task: Task) -> Dataset:
    """Return a silo's rows: four numbers, one of them with gaps, and a text column."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60 + 20 * seed, 5)).astype(np.float32)
    X[:, 4] = rng.integers(0, 6, len(X))
    y = X[:, 0] * X[:, 1] + (X[:, 4] == 1) + (X[:, 4] == 4) + 0.3 * rng.normal(size=len(X))
    X[rng.random(len(X)) < 0.1, 3] = np.nan
    n_classes = {Task.BINARY: 2, Task.MULTICLASS: 3}.get(task, 0)
    y = np.digitize(y, [0.4] if n_classes == 2 else [0.0, 0.8]) if n_classes else np.exp(y / 2)
    if task is Task.SURVIVAL:
        y = oracles.bounds(y, rng)
    if task is Task.RANKING:
        y = np.stack([np.digitize(y, [0.8, 1.2]), np.arange(len(y)) // 10], axis=1)
    features = (*(Feature(f"x{i}") for i in range(4)), Feature("kind", tuple("abcdef")))
    return Dataset(Schema(features, "label", task, n_classes), X, y.astype(np.float64))


DOMAIN = ColumnRules(
    ranges=(*((f"x{i}", (-3.0, 3.0)) for i in range(4)), ("label", (0.0, 9.0))),
    levels=(("kind", tuple("abcdef")),),
)
COLUMNS = {"guest": ("x0", "x1", "kind"), "host-1": ("x2", "x3")}


def parties(job: JobParameters, seed: int) -> dict[str, Dataset]:
    """Return the two tables of a vertical job, as agents read them, with the same rows."""
    rows = table(seed, job.task)
    rng = np.random.default_rng(seed)
    words = rows.schema.features[4].categories or ()
    columns: dict[str, Any] = {f"x{i}": rows.X[:, i] for i in range(4)}
    columns["kind"] = [words[int(code)] for code in rows.X[:, 4]]
    asked = {
        "_id": [f"row {k}" for k in range(rows.n_samples)],
        "label": rows.labels if job.task is Task.REGRESSION else rows.labels.astype(np.int64),
        "w": rng.uniform(0.5, 2, rows.n_samples),
        "m": rng.normal(size=rows.n_samples),
    }
    return {
        party: for_job(
            pa.table({**asked, **{name: columns[name] for name in names}}),
            replace(job, features=names),
            party,
            party=party,
        )
        for party, names in COLUMNS.items()
    }


def run_vertical(job: JobParameters, start: JobParameters | None) -> Outcome:
    """Run a vertical job; it finds what ``start`` has trained under the name ``model``."""
    trained = kept(run_vertical(start, None)) if start is not None else {}
    # What a passive party numbers its features and orders its candidates by.
    secret = {"secureboost/secret": bytes(32)}
    memories = {party: secret | trained.get(party, {}) for party in COLUMNS}
    SENT.clear()
    strategy = job.parameters
    assert isinstance(strategy, SecureBoost)
    found = parties(job, 4)
    return run_in_memory(
        job, found, schema=found[strategy.active].schema, vaults=vertical.vaults(),
        memories=memories, make_link=CountingLink,
        validation=parties(job, 3) if strategy.validation_tables else None,
    )  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What a job shows: files and scores, and its exchanges with their bytes."""

    model: str
    sent: list[tuple[str, str, int]]

    def like(self, other: Seen) -> bool:
        """Whether nothing differs but the length of random numbers."""
        return (
            self.model == other.model
            and [s[:2] for s in self.sent] == [s[:2] for s in other.sent]
            and all(
                abs(mine - theirs) <= RANDOM_BYTES
                for (_, _, mine), (_, _, theirs) in zip(self.sent, other.sent, strict=True)
            )
        )


RANDOM_BYTES = 6


@dataclass
class CountingLink(MemoryLink):
    """Counts the bytes of every offer by step."""

    def parcel(self, step: Any, at: Any, offer: Any) -> Any:
        size = sum(part.ByteSize() for part in codec_of(type(offer)).encode(offer))
        SENT.append((step.name, str(at), size))
        return super().parcel(step, at, offer)


AUTHORITY = Authority()
SENT: list[tuple[str, str, int]] = []


RUNS: dict[str, Seen] = {}


def unchanged(name: str, given: dict[str, Any]) -> Seen:
    """Return what the unchanged job shows; most parameters are compared with the same one."""
    key = f"{name} {sorted(given.items())}"
    if key not in RUNS:
        RUNS[key] = seen(CASES[name], given)
    return RUNS[key]


def seen(case: Case, given: dict[str, Any]) -> Seen:
    """Run a job and return what it shows."""
    given = {**case.booster, **given}
    own = {f.name for f in dataclasses.fields(case.quick)}
    booster = {f.name for f in dataclasses.fields(Booster)}
    task = given.get("task", Task.BINARY)
    job = JobParameters(
        "options",
        replace(case.quick, **{k: v for k, v in given.items() if k in own}),
        task=task,
        seed=5,
        min_silos=given.get("min_silos", 1),
        silos=given.get("silos", ()),
        classes=3 if task is Task.MULTICLASS else 0,
        booster=Booster(
            **{k: v for k, v in given.items() if k in booster and k not in own},
        ),
        columns=DOMAIN if isinstance(case.quick, PrivateBoost) else ColumnRules(),
    )
    job.check_columns()
    job.parameters.validate(job)
    check_device(job.booster.device, "this test")
    result = run_job(job, case)
    assert result.error is None, result.error
    assert not result.errors, result.errors
    assert result.artefact is not None
    own_files = [(silo, own.files) for silo, own in sorted(result.kept.items()) if own is not None]
    scores = [(r.round, r.metrics, r.best_round) for r in result.rounds]
    model = repr((sorted(result.artefact.files.items()), own_files, scores))
    return Seen(model, sorted(SENT))


def run_job(job: JobParameters, case: Case) -> Outcome:
    """Run a job over four silos, or over two parties."""
    if isinstance(job.parameters, SecureBoost):
        if not (job.parameters.predict_from or job.parameters.warm_start):
            return run_vertical(job, None)
        # Enough divisions that eini agrees to hide them.
        start = replace(case.quick, rounds=6, min_leaf=1, max_purity=1.0)
        return run_vertical(job, replace(job, parameters=start))
    SENT.clear()
    silos = {f"silo-{k}": table(k, job.task) for k in range(4)}
    return run_in_memory(
        job, silos, make_link=CountingLink, identities=lambda silo: TestIdentity(AUTHORITY, silo),
        validation=silos if job.validates else None,
    )  # fmt: skip


def options() -> list[Any]:
    """Return (case, parameter, whether it is of [booster]) of all strategies."""
    found = []
    for name, case in CASES.items():
        for parameter in dataclasses.fields(case.quick):
            found.append(pytest.param(name, parameter.name, id=f"{name}-{parameter.name}"))
        for parameter in dataclasses.fields(Booster):
            found.append(pytest.param(name, parameter.name, id=f"{name}-booster-{parameter.name}"))
    return found


@pytest.mark.parametrize(("name", "parameter"), options())
def test_a_changed_parameter_is_seen_in_the_result_or_refused(name, parameter):
    case = CASES[name]
    value, beside = (case.changes if parameter in case.changes else BOOSTER)[parameter]
    try:
        changed = seen(case, {**beside, parameter: value})
    except InvalidJob as refusal:
        named = str(refusal)
        if any(key.rstrip("_") in named for key in (parameter, "objective", *beside)):
            return
        raise
    if parameter in case.unseen:
        return
    assert not changed.like(unchanged(name, beside))


@pytest.mark.parametrize("name", CASES)
def test_nothing_else_differs_between_two_runs(name):
    assert seen(CASES[name], {}).like(unchanged(name, {}))
