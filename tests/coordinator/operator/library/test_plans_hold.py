"""Plans of random tables and jobs of every strategy: within a factor of two of what is moved."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hedgerow
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.registry import NAMES
from hedgerow.coordinator.operator.library.jobs import plan_tables, table_of
from hedgerow.coordinator.operator.library.memory import Conditions, federate
from hedgerow.coordinator.server.plans import UNKNOWN, plan_of
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.wire.job_view import JobView, PlanView

JOBS: dict[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    "bagging": lambda r: {
        "rounds": int(r.integers(1, 4)), "scrub": str(r.choice(["none", "stats"])),
    },
    "histogram": lambda r: {
        "rounds": int(r.integers(1, 3)), "binning": str(r.choice(["recursive", "summary"])),
        "secure": bool(r.integers(2)),
        "booster": {"max_bin": int(r.choice([8, 256])), "max_depth": int(r.integers(1, 6))},
    },
    "fedxgbllr": lambda r: {"trees": 6, "secure": bool(r.integers(2))},
    "fedga": lambda r: {
        "generations": int(r.integers(2, 6)), "population": int(r.integers(4, 20)),
        "max_depth": int(r.integers(2, 5)),
    },
    "dp_tree": lambda r: {"depth": int(r.integers(1, 4)), "epsilon": float(r.choice([1, 1000]))},
    "private_boost": lambda r: {"trees": int(r.integers(1, 4)), "depth": int(r.integers(1, 5))},
    "explore": lambda r: {"bins": int(r.integers(4, 40))},
    "simfl": lambda r: {"rounds": int(r.integers(1, 3))},
    "secureboost": lambda r: {
        "rounds": int(r.integers(1, 3)), "mode": str(r.choice(["standard", "mix", "layered"])),
        "encryption": str(r.choice(["elgamal", "paillier"])), "active": "a",
    },
}  # fmt: skip


def columns(
    rng: np.random.Generator, n: int, sizes: list[int], gaps: list[float], task: str
) -> tuple[dict[str, Any], Any]:
    """Return columns of numbers, some with gaps, and of categories, and labels for them."""
    shared = np.random.default_rng(99)
    numbers = [rng.normal(size=n) for _ in gaps]
    score = sum(numbers, 0.3 * rng.normal(size=n))
    found: dict[str, Any] = {}
    for k, (values, gap) in enumerate(zip(numbers, gaps, strict=True)):
        found[f"x{k}"] = np.where(rng.random(n) < gap, np.nan, values)
    for k, size in enumerate(sizes):
        codes = rng.integers(0, size, n)
        found[f"c{k}"] = np.array([f"category {code:06d}" for code in codes])
        score = score + shared.normal(size=size)[codes]
    classes = {"binary": score > 0, "multiclass": np.digitize(score, [-0.7, 0.7])}
    return found, classes[task].astype(int) if task in classes else score


def made(strategy: str, seed: int) -> tuple[hedgerow.Job, dict[str, dict[str, Any]]]:
    """Return a random job and tables for it."""
    rng = np.random.default_rng(seed)
    tasks = ["binary", "multiclass", "regression"]
    task = str(rng.choice(tasks[: 2 if strategy in ("dp_tree", "fedga") else 3]))
    sizes = [int(2 ** rng.uniform(1.1, 9)) for _ in range(rng.integers(0, 3))]
    gaps = [float(rng.choice([0, 0.3])) for _ in range(rng.integers(0 if sizes else 1, 6))]
    own = JOBS[strategy](rng)
    if strategy == "fedxgbllr":
        own["combiner"] = "ridge" if task == "regression" else "logit_ridge"
    if strategy == "secureboost":
        if own["mode"] == "layered":
            own |= {"host_depth": 2, "guest_depth": 1}
        n, parts = int(2 ** rng.uniform(7, 9)), [min(size, 60) for size in sizes]
        found, labels = columns(rng, n, parts, [*gaps, 0.0, 0.0], task)
        names = [str(name) for name in rng.permutation(list(found))]
        cut, ids = int(rng.integers(1, len(names))), {"_id": [f"p{k}" for k in range(n)]}
        tables = {
            "a": {**ids, **{name: found[name] for name in names[:cut]}, "label": labels},
            "b": {**ids, **{name: found[name] for name in names[cut:]}},
        }
    else:
        tables = {}
        for silo in "abc":
            found, labels = columns(rng, int(2 ** rng.uniform(7, 10.5)), sizes, gaps, task)
            tables[silo] = {**found, "label": labels}
        own |= {"silos": list("abc"), "min_silos": 3}
    if strategy in ("dp_tree", "private_boost"):
        for k in range(len(sizes)):
            every = np.concatenate([table[f"c{k}"] for table in tables.values()])
            own.setdefault("levels", {})[f"c{k}"] = sorted(set(every.tolist()))
        own["ranges"] = {f"x{k}": [-6, 6] for k in range(len(gaps))}
        own["ranges"] |= {"label": [-30, 30]} if task == "regression" else {}
    if task == "multiclass":
        own["classes"] = 3
    return hedgerow.Job(strategy, task=task, **own), tables


def registered(tables: dict[str, dict[str, Any]]) -> dict[Silo, Registration]:
    """Return what a coordinator knows of silos with these tables."""
    return {
        Silo(name): Registration(
            "", "", (), 1 << (len(table["label"]) - 1).bit_length(), len(table)
        )
        for name, table in tables.items()
    }


def check_most(plan: PlanView, view: JobView) -> None:
    """Hold what a plan says that trees take at most against what was moved."""
    told = re.findall(r"at most (\d+) bytes up from a silo and (\d+) down", " ".join(plan.notes))
    assert len(told) == 1
    for step in view.steps:
        if step.method == "ExchangeTrees":
            assert step.bytes_up <= int(told[0][0])
            assert step.bytes_down <= int(told[0][1])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("strategy", sorted(JOBS))
def test_a_plan_is_within_a_factor_of_two_(strategy: str, seed: int) -> None:
    job, tables = made(strategy, seed)
    read = {name: table_of(job.parameters, name, table) for name, table in tables.items()}
    plan = plan_tables(job.parameters, read)
    view = federate(job, read, Conditions()).view
    if strategy in ("bagging", "fedxgbllr"):
        check_most(plan, view)
        check_most(plan_of(job.parameters, registered(tables)), view)
    slack = 40 * sum(step.exchanges for step in plan.steps)  # messages that are all head
    for way in ("bytes_up", "bytes_down"):
        told, really = (sum(getattr(s, way) for s in of.steps) for of in (plan, view))
        assert really < 2 * told, way
        # Of a private tree the plan is that of a full one; noise ends it anywhere.
        if strategy == "dp_tree":
            assert really < 1.2 * told + slack, way
        else:
            assert told < 2 * really + slack, way


@pytest.mark.parametrize("distinct", [0.3, 0.95])
@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("strategy", ["bagging", "fedxgbllr"])
def test_a_plan_holds_with_nearly_unique_text(strategy: str, depth: int, distinct: float) -> None:
    n, k = 500, int(500 * distinct)
    rng = np.random.default_rng(depth)
    effect, tables = rng.normal(size=k), {}
    for silo in "abc":
        codes, x = rng.integers(0, k, n), rng.normal(size=(n, 2))
        score = effect[codes] + x.sum(axis=1)
        titles = np.array([f"title {code:06d}" for code in codes])
        tables[silo] = {"title": titles, "x0": x[:, 0], "x1": x[:, 1], "label": score}
    own: dict[str, Any] = {"rounds": 3, "scrub": "stats"}
    if strategy == "fedxgbllr":
        own = {"trees": 30, "combiner": "ridge", "secure": False}
    job = hedgerow.Job(
        strategy, task="regression", silos=list("abc"), min_silos=3,
        booster={"max_depth": depth}, **own,
    )  # fmt: skip
    read = {name: table_of(job.parameters, name, table) for name, table in tables.items()}
    steps = [
        {step.method: step for step in of.steps if step.silo == "a"}["ExchangeTrees"]
        for of in (plan_tables(job.parameters, read), federate(job, read, Conditions()).view)
    ]
    for way in ("bytes_up", "bytes_down"):
        told, really = (getattr(step, way) for step in steps)
        assert 0.7 < told / really < 1.5, way


@pytest.mark.parametrize("limits", [{"max_depth": 0}, {"max_depth": 0, "max_leaves": 900}])
@pytest.mark.parametrize("strategy", ["bagging", "fedxgbllr"])
def test_the_most_that_a_plan_tells_holds_where_depth_has_no_limit(
    strategy: str, limits: dict[str, int]
) -> None:
    """Each leaf has a row at least: noise divides them until few are left in any."""
    rng, n = np.random.default_rng(1), 60_000
    tables = {
        silo: {name: rng.normal(size=n) for name in ("x0", "x1", "x2", "x3", "label")}
        for silo in "abc"
    }
    own: dict[str, Any] = {"rounds": 1, "scrub": "none"}
    if strategy == "fedxgbllr":
        own = {"trees": 3, "combiner": "ridge", "secure": False, "scrub": "none"}
    job = hedgerow.Job(
        strategy, task="regression", silos=list("abc"), min_silos=3,
        booster={"min_child_weight": 0.0, "gamma": 0.0, **limits}, **own,
    )  # fmt: skip
    read = {name: table_of(job.parameters, name, table) for name, table in tables.items()}
    view = federate(job, read, Conditions()).view
    check_most(plan_tables(job.parameters, read), view)
    check_most(plan_of(job.parameters, registered(tables)), view)
    unknown = plan_of(job.parameters, dict.fromkeys(map(Silo, "abc"), UNKNOWN))
    told = "nothing limits the size of trees" in " ".join(unknown.notes)
    assert told == ("max_leaves" not in limits)


def test_every_strategy_is_tried() -> None:
    assert set(JOBS) == set(NAMES)  # a plugin of another test may be installed beside them
