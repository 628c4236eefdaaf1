"""FedGA-Tree beside other trees: the silos' own, the DP tree, a forest of the silos' trees.

``python -m benchmarks.fedga [--data DIR] [--part PART ...] [--sets NAME ...] [--splits N]
[--runs N] [--quick] [--json FILE]``. ``DIR`` holds the Parquet files of the data sets (column
``label``); missing ones are named and skipped. Parts: ``trees`` (default),
``federations`` (by number of silos, and by the share drawn), ``cost``, ``bytes``.

Protocol (per split): 20 % of the rows, shuffled by the split's seed, are the common test rows; the
others go to 20 silos at random. Both halves of the strategies run in this process through the real
barrier and codecs. Scores are F1 (class 1 of two, macro of more) or mean squared
error on the test rows, averaged over the silos, then over splits and runs; ``delta`` is the mean
over silos of the federated score's change relative to the silo's own tree; ``edit_distance`` the
mean over silos of that between the structures of the silo's federated tree and of its CART at
FedGA's depth, which the search starts from (:mod:`._structures`). ``who`` is a tree:

- ``fedga``;
- ``own``: CART at the silo's own cross-validated depth;
- ``own-at-depth``: CART at FedGA's depth;
- ``forest``: all own trees vote by their class shares or means;
- ``central``: CART at FedGA's depth on all rows in one place;
- ``dp-tree``: epsilon 0.5, depth 4, 5 bins, counts for every cut, exact quantile edges (the form of
  the published benchmark); ``dp-tree-histogram``: ours, same edges; ``dp-tree-private``: ours,
  edges within the budget too; ``dp-tree-no-noise``: infinite epsilon.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from benchmarks._structures import Nodes, edit_distance, n_decisions
from benchmarks.secure_sums import CountingLink
from hedgerow.boosting import metrics
from hedgerow.boosting.budget import BudgetLedger
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.errors import JobStopped
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import (
    Artefact,
    CoordinatorStart,
    JobParameters,
    RoundResult,
    SiloStart,
)
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.fedga.checkpoint import SearchState
from hedgerow.boosting.strategies.fedga.forecast import forecast
from hedgerow.boosting.strategies.fedga.local_trees import LocalTrees
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.streams import generator
from hedgerow.boosting.tables import read_table, to_dataset
from hedgerow.boosting.trees.cart import grow_cart
from hedgerow.boosting.trees.decision_tree import OBJECTIVES, DecisionTree
from hedgerow.boosting.trees.genetics import depth_of, random_structures
from hedgerow.boosting.trees.ranked import rank_table
from hedgerow.boosting.trees.structures import fitness_of
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.crypto.vault.local_vault import LocalVault

Row = dict[str, object]
N_SILOS = 20
EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "data"
"""The repository's data: Adult."""

DP_TREES = {
    "dp-tree": DPTree(0.5, binning="quantile", query="candidates"),
    "dp-tree-histogram": DPTree(0.5, binning="quantile"),
    "dp-tree-private": DPTree(0.5),
    "dp-tree-no-noise": DPTree(math.inf, binning="quantile"),
}
CLASSIFICATION = {
    "nursery": Task.MULTICLASS,
    "adult": Task.BINARY,
    "tb_california": Task.BINARY,
    "tb_default_credit": Task.BINARY,
    "tb_electricity": Task.BINARY,
    "tb_house_16h_clf": Task.BINARY,
    "tb_bank_marketing": Task.BINARY,
    "tb_magic_telescope": Task.BINARY,
}
REGRESSION = dict.fromkeys(
    (
        "abalone",
        "tb_analcatdata_supreme",
        "tb_bike_sharing",
        "tb_brazilian_houses",
        "tb_cpu_act",
        "tb_house_16h_reg",
        "tb_houses",
        "tb_house_sales",
        "tb_visualizing_soil",
        "tb_wine_quality",
    ),
    Task.REGRESSION,
)
SETS = CLASSIFICATION | REGRESSION


@dataclass
class Ran:
    """Results and traffic of a job in this process."""

    rounds: list[RoundResult]
    kept: dict[Silo, Artefact | None]
    artefact: Artefact
    up: int
    down: int
    calls: int = 0


def federate(
    job: JobParameters,
    silos: dict[Silo, Dataset],
    *,
    test: Dataset | None = None,
) -> Ran:
    """Run both halves of a job with the real barrier."""
    names = tuple(sorted(silos))
    schema = silos[names[0]].schema

    async def main() -> Ran:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(len(names) + 4))
        hub = Barrier(names, names, 600.0)
        links = {silo: CountingLink(silo, hub, loop, "") for silo in names}

        def participate(silo: Silo) -> Artefact | None:
            start = SiloStart(
                job=job, job_id="bench", attempt=1, silo=silo, silos=names, schema=schema,
                dataset=silos[silo], accountant=BudgetLedger(math.inf), draws=job.seed,
            )  # fmt: skip
            kept = job.strategy.participate(job.parameters, links[silo], LocalVault(), start)
            return kept if isinstance(kept, Artefact) else None

        tasks = {silo: asyncio.create_task(asyncio.to_thread(participate, silo)) for silo in names}
        start = CoordinatorStart(
            job=job, job_id="bench", attempt=1, silos=names, schema=schema,
            n_samples={silo: data.n_samples for silo, data in silos.items()}, test=test,
        )  # fmt: skip
        rounds = [result async for result in job.strategy.coordinate(job.parameters, hub, start)]
        kept = {silo: await task for silo, task in tasks.items()}
        hub.end(JobStopped("the benchmark is over"))
        artefact = job.strategy.artefact(job.parameters, job, schema, rounds[-1].checkpoint)
        up = sum(link.up for link in links.values())
        return Ran(rounds, kept, artefact, up, sum(link.down for link in links.values()))

    return asyncio.run(main())


def load(folder: Path, name: str) -> Dataset | None:
    """Return a data set, or None where its file is not there."""
    path = folder / f"{name}.parquet"
    if not path.exists():
        return None
    task = SETS[name]
    return to_dataset(read_table(str(path)), name, task=task, label="label")


def split(data: Dataset, seed: int, n_silos: int) -> tuple[dict[Silo, Dataset], Dataset]:
    """Return silos' rows and the common test rows."""
    shuffled = np.random.default_rng(seed).permutation(data.n_samples)
    n_test = data.n_samples // 5
    parts = np.array_split(shuffled[n_test:], n_silos)
    silos = {Silo(f"silo-{k:02}"): data.take(rows) for k, rows in enumerate(parts)}
    return silos, data.take(shuffled[:n_test])


def primary(task: Task) -> str:
    return "mse" if task is Task.REGRESSION else "f1"


def score_margins(margins: NDArray[Any], test: Dataset, name: str = "") -> float:
    """Return F1 or the mean squared error on the test rows, or another metric."""
    task, name = test.schema.task, name or primary(test.schema.task)
    found = metrics.evaluate([name], test.labels, margins, objective=OBJECTIVES[task])
    return float(found[name])


def score_file(raw: bytes, test: Dataset, name: str = "") -> float:
    """Return the score of a stock XGBoost model."""
    return score_margins(file_margins(raw, test), test, name)


def file_margins(raw: bytes, test: Dataset) -> NDArray[Any]:
    """Return a stock XGBoost model's margins."""
    booster = xgboost.Booster({"nthread": 1}, model_file=bytearray(raw))
    schema = test.schema
    rows = xgboost.DMatrix(
        test.X, feature_names=list(schema.names), feature_types=schema.feature_types,
        enable_categorical=True, nthread=1,
    )  # fmt: skip
    margins: NDArray[Any] = booster.predict(rows, output_margin=True)
    return margins


def forest_score(trees: list[DecisionTree], test: Dataset) -> float:
    """Return the score of all trees together: mean class shares, or mean values."""
    total: NDArray[np.float64] | float = 0.0
    for tree in trees:
        content = tree.content[tree.apply(test.X)]
        if test.schema.task is not Task.REGRESSION:
            content = content / content.sum(axis=1, keepdims=True)
        total = total + content / len(trees)
    assert isinstance(total, np.ndarray)
    if test.schema.task is Task.REGRESSION:
        return score_margins(total[:, 0], test)
    if test.schema.task is Task.BINARY:
        return score_margins(total[:, 1] - 0.5, test)
    return score_margins(total, test)


@dataclass
class Tally:
    """Values of each (metric, who) over splits and runs."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, metric: str, who: str, value: float) -> None:
        """Add a value."""
        self.values.setdefault((metric, who), []).append(value)

    def rows(self, name: str, units: dict[str, str]) -> list[Row]:
        """Return means with standard deviations."""
        return [
            {
                "metric": metric,
                "who": who,
                "value": statistics.fmean(found),
                "unit": units.get(metric, ""),
                "sd": statistics.stdev(found) if len(found) > 1 else 0.0,
                "n": len(found),
                "set": name,
            }
            for (metric, who), found in self.values.items()
        ]


UNITS = {"delta": "%", "share_gaining": "", "decision_nodes": "nodes", "rounds": "rounds"}


def local_trees(strategy: FedGA, silos: dict[Silo, Dataset], seed: int) -> dict[Silo, LocalTrees]:
    """Return the silos' own side, with streams of their own."""
    return {
        silo: LocalTrees(data, strategy, partial(generator, seed, place + 1, 0))
        for place, (silo, data) in enumerate(sorted(silos.items()))
    }


def own_trees(
    silos: dict[Silo, LocalTrees], test: Dataset
) -> tuple[list[DecisionTree], NDArray[np.float64]]:
    """Return the silos' trees at their own depths, and the tests' scores of them."""
    trees = [side.cart(side.own_depth()) for side in silos.values()]
    return trees, np.array([score_margins(tree.margins(test.X), test) for tree in trees])


def federated_scores(ran: Ran, test: Dataset) -> tuple[list[float], list[Nodes]]:
    """Return the test score and the nodes of each silo's federated tree."""
    scores: list[float] = []
    nodes: list[Nodes] = []
    for silo in sorted(ran.kept):
        kept = ran.kept[silo]
        assert kept is not None
        scores.append(score_file(kept.files["model.ubj"], test))
        nodes.append(json.loads(kept.files["tree.json"])["nodes"])
    return scores, nodes


def trees_of(data: Dataset, name: str, splits: range, runs: int) -> list[Row]:
    """Return the table of one data set."""
    task, tally = data.schema.task, Tally()
    metric = primary(task)
    for seed in splits:
        silos, test = split(data, seed, N_SILOS)
        own_side = local_trees(FedGA(), silos, seed)
        own, own_scores = own_trees(own_side, test)
        tally.add(metric, "own", float(own_scores.mean()))
        tally.add("decision_nodes", "own", statistics.fmean(t.n_decisions for t in own))
        tally.add(metric, "forest", forest_score(own, test))
        depth = 0
        federated: list[list[Nodes]] = []
        for run in range(runs):
            job = JobParameters("bench", FedGA(), task=task, seed=1000 * run + seed)
            ran = federate(job, silos)
            scores, nodes = federated_scores(ran, test)
            generation = SearchState.decode(ran.rounds[-1].checkpoint).generation
            depth = depth_of(generation.population.shape[1])
            tally.add(metric, "fedga", statistics.fmean(scores))
            tally.add("decision_nodes", "fedga", statistics.fmean(map(n_decisions, nodes)))
            federated.append(nodes)
            add_change(tally, "fedga", np.array(scores), own_scores, task)
            tally.add("depth", "fedga", depth)
            tally.add("rounds", "fedga", len(ran.rounds))
            tally.add("structures_scored", "fedga", generation.n_scored)
            tally.add("elitism", "fedga", float(bool(generation.elite)))
            tally.add("wire_megabytes", "fedga", (ran.up + ran.down) / 1e6)
            if task is not Task.REGRESSION:
                for who, strategy in DP_TREES.items():
                    score, n = dp_tree_score(strategy, silos, test)
                    tally.add(metric, who, score)
                    tally.add("decision_nodes", who, n)
                    add_change(tally, who, np.full(len(silos), score), own_scores, task)
        at_depth = [side.cart(depth) for side in own_side.values()]
        local: list[Any] = [tree.document()["nodes"] for tree in at_depth]
        for nodes in federated:
            apart = statistics.fmean(map(edit_distance, nodes, local))
            tally.add("edit_distance", "fedga", apart)
        found = np.array([score_margins(tree.margins(test.X), test) for tree in at_depth])
        tally.add(metric, "own-at-depth", float(found.mean()))
        tally.add(
            "decision_nodes", "own-at-depth", statistics.fmean(t.n_decisions for t in at_depth)
        )
        add_change(tally, "own-at-depth", found, own_scores, task)
        table = rank_table(pooled(silos))
        central = grow_cart(table, table.all_rows, depth, 1)
        tally.add(metric, "central", score_margins(central.margins(test.X), test))
    return tally.rows(name, UNITS)


def add_change(tally: Tally, who: str, scores: NDArray[Any], own: NDArray[Any], task: Task) -> None:
    """Add the mean change from own scores, in percent, and the share of silos that gain."""
    sign = -1.0 if task is Task.REGRESSION else 1.0
    tally.add("delta", who, float(np.mean((scores - own) / own)) * 100.0)
    tally.add("share_gaining", who, float(np.mean(sign * (scores - own) > 0.0)))


def dp_tree_score(strategy: DPTree, silos: dict[Silo, Dataset], test: Dataset) -> tuple[float, int]:
    """Return the test score and the decisions of a tree under differential privacy."""
    # The rows in one place under the noise of one silo: the same counts and, since the parts of
    # all silos add up to one whole variable, the same noise as in secure sums over the silos.
    job = JobParameters("bench", replace(strategy, secure=False), task=test.schema.task)
    ran = federate(job, {Silo("all"): pooled(silos)})
    found = json.loads(ran.artefact.files["tree.json"])["nodes"]
    return score_file(ran.artefact.files["model.ubj"], test), n_decisions(found)


def pooled(silos: dict[Silo, Dataset]) -> Dataset:
    """Return the rows of all silos."""
    parts = list(silos.values())
    return Dataset(
        parts[0].schema,
        np.concatenate([part.X for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )


FEDERATIONS = ((5, 1.0), (10, 1.0), (20, 1.0), (40, 1.0), (20, 0.75), (20, 0.5), (20, 0.25))
"""Numbers of silos, and shares of them that are drawn for a generation."""


def federations_of(data: Dataset, name: str, splits: range, runs: int) -> list[Row]:
    """Return FedGA's scores and changes against own trees by number and share of silos."""
    task, tally = data.schema.task, Tally()
    for seed, (n_silos, share) in product(splits, FEDERATIONS):
        silos, test = split(data, seed, n_silos)
        own = local_trees(FedGA(), silos, seed)
        own_scores = own_trees(own, test)[1]
        strategy, who = replace(FedGA(), participation=share), f"{share:.0%} of {n_silos}"
        for run in range(runs):
            job = JobParameters("bench", strategy, task=task, seed=1000 * run + seed)
            scores = np.array(federated_scores(federate(job, silos), test)[0])
            tally.add(primary(task), who, float(scores.mean()))
            add_change(tally, who, scores, own_scores, task)
    return tally.rows(name, UNITS)


def cost(quick: bool) -> list[Row]:
    """Return the CPU of one generation in one silo, and of scikit-learn's trees beside it."""
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 15)).astype(np.float32)
    signal = X[:, 0] * X[:, 1] + X[:, 2] + 0.5 * rng.normal(size=2000)
    schema = Schema(tuple(Feature(f"x{i}") for i in range(15)), "label", Task.BINARY, 2)
    data = Dataset(schema, X, (signal > 0).astype(np.float64))
    table = rank_table(data)
    rows = []
    for leaf_share in (0.0, 0.2):
        population = random_structures(rng, 100, 5, 15, leaf_share)
        fitness_of(table, population, table.all_rows, None, 1)
        seconds = _median_cpu(
            lambda p=population: fitness_of(table, p, table.all_rows, None, 1),
            5 if quick else 21,
        )
        rows.append(
            {"metric": "generation_seconds", "who": "hedgerow", "value": seconds, "unit": "s",
             "structures": 100, "depth": 5, "rows": 2000, "features": 15,
             "leaf_share": leaf_share}
        )  # fmt: skip

    def scikit() -> None:
        for seed in range(100):
            DecisionTreeClassifier(max_depth=5, max_features=1, random_state=seed).fit(X, data.y)

    def scikit_all() -> None:
        for _ in range(100):
            DecisionTreeClassifier(max_depth=5).fit(X, data.y)

    for metric, run in (
        ("hundred_trees_one_feature_a_node_seconds", scikit),
        ("hundred_trees_all_features_seconds", scikit_all),
    ):
        seconds = _median_cpu(run, 1 if quick else 3)
        rows.append({"metric": metric, "who": "scikit-learn", "value": seconds, "unit": "s"})
    return rows


def _median_cpu(run: Any, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def wire(data: Dataset, name: str) -> list[Row]:
    """Return the frames' bytes of 50 generations with 20 silos, with and without early stop."""
    silos, _ = split(data, 0, N_SILOS)
    rows: list[Row] = []
    for patience in (15, 0):
        strategy = FedGA(generations=50, patience=patience)
        job = JobParameters("bench", strategy, task=data.schema.task)
        ran = federate(job, silos)
        _, up, down = forecast(strategy, job, data.schema, {}).steps["ExchangeScores"]
        case = {"set": name, "patience": patience, "rounds": len(ran.rounds)}
        rows += [
            {"metric": "bytes_up", "who": "fedga", "value": ran.up, "unit": "B", **case},
            {"metric": "bytes_down", "who": "fedga", "value": ran.down, "unit": "B", **case},
            {
                "metric": "bytes_forecast", "who": "fedga", "value": N_SILOS * (up + down),
                "unit": "B", **case,
            },
        ]  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=EXAMPLES, help="folder of Parquet files")
    parser.add_argument("--part", nargs="*", default=["trees"])
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--first-split", type=int, default=0)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="Adult, one split, one run, and the cost"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sets, arguments.splits, arguments.runs = ["adult"], 1, 1
        arguments.part = ["trees", "cost"]
    splits = range(arguments.first_split, arguments.first_split + arguments.splits)
    measured: list[Row] = cost(arguments.quick) if "cost" in arguments.part else []
    for name in arguments.sets if set(arguments.part) - {"cost"} else []:
        data = load(arguments.data, name)
        if data is None:
            print(f"{name}: no such file, skipped")
            continue
        if "trees" in arguments.part:
            measured += trees_of(data, name, splits, arguments.runs)
        if "federations" in arguments.part:
            measured += federations_of(data, name, splits, arguments.runs)
        if "bytes" in arguments.part:
            measured += wire(data, name)
        if arguments.json:
            arguments.json.write_text(json.dumps(measured, indent=1) + "\n")
    for entry in measured:
        fixed = ("metric", "who", "value", "unit")
        case = " ".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in entry.items()
            if key not in fixed
        )
        print(
            f"{entry['metric']:20s} {entry['who']:18s} {entry['value']:12.5g} "
            f"{entry['unit']:6s} {case}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
