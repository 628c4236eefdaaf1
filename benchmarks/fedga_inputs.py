"""FedGA's appendices and options: bins, depths, shares of the silos, as in the paper.

``python -m benchmarks.fedga_inputs --what bins|depths|shares|paper|metrics|central
[--data DIR] [--sets NAME ...] [--splits N] [--runs N] [--quick] [--json FILE]``. Rows, silos and
scores as in ``benchmarks.fedga``; all but ``paper`` and ``central`` for classifications only.

- ``bins`` (Appendix A): the silos' own trees, FedGA and the own tree of all rows in one place, with
  numbers as they are and as the ordinals of scikit-learn's ``KBinsDiscretizer``: 5 quantile bins,
  fitted to the training rows of all silos; 2 equally wide bins where one quantile bin would be
  left. The source's number of bins is missing in our copy.
- ``depths`` (Appendix B): the tree under epsilon 0.5 in the source's form (every cut, quantile
  edges) and with private edges, by depth: 2 to 6; ``half`` of the features; the ``median`` of the
  silos' own depths, which is FedGA's rule. Depths are at most 10.
- ``paper``: FedGA with ``paper = true`` (decision nodes cost nothing, all of the last population as
  finalists) beside the default and the silos' own trees: scores, changes, decision nodes.
- ``metrics``: F1, accuracy and AUC of FedGA's trees and of the silos' own, with ``metric`` as the
  paper has it, with accuracy, and for the squared error: a regression of the classes 0 and 1 with
  ``node_cost`` 0, of which a prediction of one half or more is class 1.
- ``central``: CART on all rows in one place, at the depth that their own cross-validation prefers.
- ``shares`` (participation, Figures 6 and 10): the same two trees at depth 4, from the rows of a
  share of the twenty silos, drawn for each run.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from sklearn.preprocessing import KBinsDiscretizer

from benchmarks._structures import n_decisions
from benchmarks.fedga import (
    CLASSIFICATION,
    DP_TREES,
    EXAMPLES,
    N_SILOS,
    Row,
    Tally,
    add_change,
    dp_tree_score,
    federate,
    federated_scores,
    file_margins,
    load,
    local_trees,
    own_trees,
    pooled,
    primary,
    score_margins,
    split,
)
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.trees.genetics import MAX_DEPTH
from hedgerow.boosting.trees.structures import CLASS_SCORES

BINS = 5
DEPTHS = (2, 3, 4, 5, 6)
SHARES = (1.0, 0.75, 0.5, 0.25)
Parts = dict[Silo, Dataset]


def binned(silos: Parts, test: Dataset) -> tuple[Parts, Dataset]:
    """Return silos and test rows with the ordinals of bins in place of numbers."""
    rows = pooled(silos)
    numeric = [k for k, one in enumerate(rows.schema.features) if one.categories is None]
    found = {}
    for column in numeric:
        values = rows.X[:, [column]]
        bins = KBinsDiscretizer(BINS, encode="ordinal", strategy="quantile", subsample=None)
        bins.fit(values)
        if bins.n_bins_[0] == 1:
            bins = KBinsDiscretizer(2, encode="ordinal", strategy="uniform", subsample=None)
            bins.fit(values)
        found[column] = bins

    def within(data: Dataset) -> Dataset:
        features = data.X.copy()
        for column, bins in found.items():
            features[:, [column]] = bins.transform(features[:, [column]])
        return replace(data, features=features)

    return {silo: within(data) for silo, data in silos.items()}, within(test)


def bins_of(data: Dataset, seed: int, runs: int) -> Iterator[tuple[str, float]]:
    """Yield scores of trees of raw and of binned numbers."""
    raw = split(data, seed, N_SILOS)
    for kind, (silos, test) in (("raw", raw), ("binned", binned(*raw))):
        yield f"own, {kind}", float(own_trees(local_trees(FedGA(), silos, seed), test)[1].mean())
        for run in range(runs):
            job = JobParameters("bench", FedGA(), task=data.schema.task, seed=1000 * run + seed)
            yield (
                f"fedga, {kind}",
                statistics.fmean(federated_scores(federate(job, silos), test)[0]),
            )
        together = local_trees(FedGA(), {Silo("all"): pooled(silos)}, seed)
        yield f"central, {kind}", float(own_trees(together, test)[1].mean())


def depths_of(data: Dataset, seed: int, runs: int) -> Iterator[tuple[str, float]]:
    """Yield scores of the tree under differential privacy by depth."""
    silos, test = split(data, seed, N_SILOS)
    own = sorted(side.own_depth() for side in local_trees(FedGA(), silos, seed).values())
    chosen = {f"{depth}": depth for depth in DEPTHS}
    chosen["half"] = min(max(data.schema.n_features // 2, 1), MAX_DEPTH)
    chosen["median"] = own[(len(own) - 1) // 2]
    for form, name in (("every cut", "dp-tree"), ("private edges", "dp-tree-private")):
        for who, depth in chosen.items():
            for _ in range(runs):
                score = dp_tree_score(replace(DP_TREES[name], depth=depth), silos, test)[0]
                yield f"{form}, {who}", score


def shares_of(data: Dataset, seed: int, runs: int) -> Iterator[tuple[str, float]]:
    """Yield scores of the tree under differential privacy by the share of silos that take part."""
    silos, test = split(data, seed, N_SILOS)
    yield "own", float(own_trees(local_trees(FedGA(), silos, seed), test)[1].mean())
    for form, name in (("every cut", "dp-tree"), ("private edges", "dp-tree-private")):
        for share, run in product(SHARES, range(runs)):
            drawn = np.random.default_rng([seed, run]).permutation(sorted(silos))
            some = {Silo(each): silos[Silo(each)] for each in drawn[: round(share * N_SILOS)]}
            yield f"{form}, {share:.0%}", dp_tree_score(DP_TREES[name], some, test)[0]


def paper_of(data: Dataset, seed: int, runs: int, tally: Tally) -> None:
    """Add scores, changes and nodes with ``paper = true``, by default, and of own trees."""
    task = data.schema.task
    silos, test = split(data, seed, N_SILOS)
    own, own_scores = own_trees(local_trees(FedGA(), silos, seed), test)
    tally.add(primary(task), "own", float(own_scores.mean()))
    tally.add("decision_nodes", "own", statistics.fmean(tree.n_decisions for tree in own))
    for run, (who, paper) in product(range(runs), (("fedga", False), ("paper", True))):
        job = JobParameters("bench", FedGA(paper=paper), task=task, seed=1000 * run + seed)
        scores, nodes = federated_scores(federate(job, silos), test)
        tally.add(primary(task), who, statistics.fmean(scores))
        tally.add("decision_nodes", who, statistics.fmean(map(n_decisions, nodes)))
        add_change(tally, who, np.array(scores), own_scores, task)


def metrics_of(data: Dataset, seed: int, runs: int, tally: Tally) -> None:
    """Add scores of own and federated trees by metric, and by what the search is for."""
    silos, test = split(data, seed, N_SILOS)
    for metric in (*CLASS_SCORES, "squared error"):
        strategy, parts, rows = FedGA(), silos, test
        if metric in CLASS_SCORES:
            strategy = FedGA(metric=metric)
        else:
            strategy, rows = FedGA(node_cost=0.0), numbered(test)
            parts = {silo: numbered(part) for silo, part in silos.items()}
        half = 0.0 if metric in CLASS_SCORES else 0.5
        own, _ = own_trees(local_trees(strategy, parts, seed), rows)
        before = [tree.margins(rows.X).reshape(len(rows.X), -1) - half for tree in own]
        for run in range(runs):
            job = JobParameters("bench", strategy, task=rows.schema.task, seed=1000 * run + seed)
            kept = [one for one in federate(job, parts).kept.values() if one is not None]
            after = [file_margins(each.files["model.ubj"], rows) - half for each in kept]
            for name in ("f1", "accuracy", "auc"):
                scores = [
                    statistics.fmean(score_margins(each, test, name) for each in margins)
                    for margins in (before, after)
                ]
                tally.add(name, f"own, {metric}", scores[0])
                tally.add(name, f"fedga, {metric}", scores[1])
                tally.add(f"{name} change", metric, scores[1] - scores[0])


def numbered(data: Dataset) -> Dataset:
    """Return the rows of two classes as those of a regression of 0 and 1."""
    schema = replace(data.schema, task=Task.REGRESSION, classes=())
    return replace(data, schema=schema, y=data.labels.astype(np.float64))


def central_of(data: Dataset, seed: int, runs: int, tally: Tally) -> None:
    """Add score and depth of CART on all rows; it draws folds by the split's seed alone."""
    silos, test = split(data, seed, N_SILOS)
    together = local_trees(FedGA(), {Silo("all"): pooled(silos)}, seed)
    tally.add(primary(data.schema.task), "central", float(own_trees(together, test)[1].mean()))
    tally.add("depth", "central", together[Silo("all")].own_depth())


ADDED = {"paper": paper_of, "metrics": metrics_of, "central": central_of}
WHAT = {"bins": bins_of, "depths": depths_of, "shares": shares_of}


def main() -> None:
    """Print means and standard deviations; write them to a file where one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--what", choices=[*WHAT, *ADDED], required=True)
    parser.add_argument("--data", type=Path, default=EXAMPLES, help="folder of Parquet files")
    parser.add_argument("--sets", nargs="*", default=list(CLASSIFICATION))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="Adult, one split, one run")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.quick:
        given.sets, given.splits, given.runs = ["adult"], 1, 1
    rows: list[Row] = []
    for name in given.sets:
        data = load(given.data, name)
        if data is None:
            print(f"{name}: no such file, skipped")
            continue
        tally = Tally()
        for seed in range(given.splits):
            if given.what in ADDED:
                ADDED[given.what](data, seed, given.runs, tally)
                continue
            for who, score in WHAT[given.what](data, seed, given.runs):
                tally.add("f1", who, score)
        found = tally.rows(name, {})
        for row in found:
            what = f"{name:20s} {row['metric']:16s} {row['who']:24s}"
            print(f"{what} {row['value']:8.4f} ± {row['sd']:.4f}", flush=True)
        rows += found
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
