"""Histogram boosting between silos beside pooled XGBoost and its federated plugin.

``python -m benchmarks.histogram [--quick] [--data DIR] [--rounds 36] [--silos 5] [--tables NAMES]
[--variant NAME]... [--link RTT:MBIT]... [--json FILE]``. Tables: a seeded ``make_classification``
of 1,000,000 x 28 rows (``synthetic``), and ``flights``, ``a9a``, ``tb_electricity`` and
``nursery`` where ``DIR`` has their files. Each federated row is a whole ``hedgerow local`` run:
coordinator, agents and crypto processes over mTLS on this machine's cores. XGBoost ``hist`` trains
on all rows in one process with as many threads as there are cores, before and after the federated
runs; the shorter time counts. ``xgboost-federated`` is XGBoost's own plugin, from ``.venv-peers``
(``make peers``): a process a silo and a server, nothing masked, no TLS, test rows scored every
round.
``tree_wall`` is the median round's wall time; ``tree_cpu`` the CPU time of one more tree in all
processes, by ``/proc``, which other load disturbs less. ``exchanges_a_tree`` are a silo's calls
inside trees. ``equals_pooled`` is 1 where all trees of the federated model are those of the engine
trained on all rows with the same cut points.

``--seeds 5`` deals the table anew five times and compares the engine's metric with pooled XGBoost's
on the same rows. ``--link 20:100`` repeats runs, of a third of the rounds, over a user-space proxy
that gives each silo a line of 20 ms there and back and 100 Mbit/s each way; the rows' variants end
in ``, 20 ms, 100 Mbit/s``. ``--scripts 3`` alone times a script of ``hedgerow.xgboost`` beside
``hedgerow local`` of the same rows and trees, three times each (``--rows``, ``--silos``,
``--rounds``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xgboost as xgb

from benchmarks._histogram_runs import BOOSTER, Link, Run, Variant, job_of, local, plugin
from benchmarks._histogram_tables import SOURCES, Source, deal, silo_names
from benchmarks._script_runs import compare
from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.engine.cuts import merged_cuts, numeric_features
from hedgerow.boosting.engine.summaries import summarise
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.tables import for_job, read_table
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.crypto.vault.interface import LEAST_SILOS
from tests.pooled import Training, train_pooled

Row = dict[str, object]

VARIANTS = (
    Variant("lossless, 256 bins", 256, {}),
    Variant("coarse 5 bits, 256 bins", 256, {"coarse_bits": 5}),
    Variant("lossless, 64 bins", 64, {}),
    Variant("coarse 5 bits, 64 bins", 64, {"coarse_bits": 5}),
    Variant("48-bit ring, 256 bins", 256, {"ring_bits": 48}, scored=False),
    Variant("MVS 10 %, 256 bins", 256, {"sampling": "mvs", "sampling_rate": 0.1}, scored=False),
    Variant("no recovery, 256 bins", 256, {"dropout_recovery": False}, scored=False),
    Variant("recursive, 256 bins", 256, {"binning": "recursive"}, scored=False),
    Variant("without filled bins, 256 bins", 256, {"filled_bins": False}, scored=False),
    Variant("without masks, 256 bins", 256, {"secure": False}, scored=False),
)


class Report:
    """Rows, printed when they are measured."""

    def __init__(self, table: str, rows: list[Row]) -> None:
        self.table, self.rows = table, rows

    def note(self, metric: str, who: str, value: float, unit: str, variant: str = "") -> None:
        """Add a row."""
        row: Row = {"metric": metric, "who": who, "value": value, "unit": unit, "table": self.table}
        if variant:
            row["variant"] = variant
        if who.startswith("xgboost"):
            row["version"] = xgb.__version__
        self.rows.append(row)
        print(
            f"{self.table:14s} {variant:40s} {metric:24s} {who:17s} {value:14.6g} {unit}",
            flush=True,
        )


class Pooled:
    """All silos' rows in one place."""

    def __init__(self, folder: Path, source: Source, n_silos: int) -> None:
        tables = [read_table(str(folder / f"{name}.parquet")) for name in silo_names(n_silos)]
        job = job_of(VARIANTS[0], 1, source.task)
        self.source, self.folder = source, folder
        self.train = for_job(pa.concat_tables(tables, promote_options="default"), job, "train")
        test = for_job(read_table(str(folder / "test.parquet")), job, "test")
        self.test = recoded(test, self.train)
        self.sizes = [table.num_rows for table in tables]
        self.threads = os.cpu_count() or 1

    def matrix(self, data: Dataset) -> xgb.DMatrix:
        """Return rows as XGBoost takes them."""
        return xgb.DMatrix(
            data.X,
            data.labels,
            feature_types=data.schema.feature_types,
            enable_categorical=True,
        )

    def native(self, max_bin: int, n_threads: int) -> dict[str, Any]:
        """Return XGBoost's parameters."""
        n_outputs = self.train.schema.n_outputs
        binary = "binary:logistic"
        return {
            "objective": "multi:softprob" if n_outputs > 1 else binary,
            "max_depth": BOOSTER.max_depth,
            "eta": BOOSTER.eta,
            "max_bin": max_bin,
            "tree_method": "hist",
            "nthread": n_threads,
            "eval_metric": self.source.metric,
        } | ({"num_class": n_outputs} if n_outputs > 1 else {})

    def xgboost(self, max_bin: int, rounds: int) -> tuple[float, float, float]:
        """Return the metric after ``rounds``, and wall and CPU seconds of one more tree."""
        data = xgb.QuantileDMatrix(
            self.train.X,
            self.train.labels,
            feature_types=self.train.schema.feature_types,
            enable_categorical=True,
            max_bin=max_bin,
        )
        walls, spents = [], []
        for n in (1, rounds):
            wall, cpu = time.monotonic(), time.process_time()
            booster = xgb.train(self.native(max_bin, self.threads), data, n)
            walls.append(time.monotonic() - wall)
            spents.append(time.process_time() - cpu)
        scores = booster.predict(self.matrix(self.test), output_margin=True)
        more = max(rounds - 1, 1)
        return self.score(scores), (walls[1] - walls[0]) / more, (spents[1] - spents[0]) / more

    def plugin(self, max_bin: int, rounds: int, link: Link | None) -> Run | None:
        """Train with XGBoost's federated plugin."""
        edges = np.cumsum([0, *self.sizes])
        parts = [self.train.take(np.arange(a, b)) for a, b in itertools.pairwise(edges)]
        threads = max(1, self.threads // len(parts))
        job = {"parameters": self.native(max_bin, threads), "rounds": rounds}
        return plugin(self.folder, parts, self.test, job, link)

    def engine(self, variant: Variant, rounds: int, seed: int = 7) -> Ensemble:
        """Return the engine's model of all rows, with the cut points that the silos agree on."""
        edges = np.cumsum([0, *self.sizes])
        numeric = numeric_features(self.train.schema)
        summaries = [
            [summarise(self.train.X[a:b, j], 4 * variant.max_bin) for j in numeric]
            for a, b in itertools.pairwise(edges)
        ]
        job = job_of(variant, rounds, self.source.task, seed)
        strategy = job.parameters
        assert isinstance(strategy, Histogram)
        return train_pooled(
            job,
            self.train,
            rounds,
            Training(
                cuts=merged_cuts(self.train.schema, summaries, variant.max_bin),
                sampler=strategy.sampler,
                blocks=self.sizes,
                coarse_bits=strategy.coarse_bits,
                ring_bits=strategy.ring_bits,
                fraction_bits=strategy.fraction_bits,
                n_threads=self.threads,
            ),
        )

    def score(self, margins: np.ndarray) -> float:
        """Return the metric of margins of the test rows."""
        objective = self.native(2, 1)["objective"]
        names = [self.source.metric]
        return metrics.evaluate(names, self.test.labels, margins, objective=objective)[names[0]]

    def score_of(self, model: Ensemble) -> float:
        """Return a model's metric on the test rows."""
        return self.score(model.margins(self.matrix(self.test), n_threads=self.threads))


def recoded(data: Dataset, like: Dataset) -> Dataset:
    """Return a table whose categories are numbered as in another."""
    X = data.X.copy()
    for j, (own, theirs) in enumerate(zip(data.schema.features, like.schema.features, strict=True)):
        if own.categories is not None and theirs.categories is not None:
            place = {name: k for k, name in enumerate(theirs.categories)}
            codes = np.array([place.get(name, np.nan) for name in own.categories], np.float32)
            known = ~np.isnan(X[:, j])
            X[known, j] = codes[X[known, j].astype(int)]
    return Dataset(like.schema, X, data.labels, data.weight)


def same(a: Ensemble, b: Ensemble) -> bool:
    names = ("left", "feature", "threshold", "default_left", "gain", "cover", "weight")
    return len(a.trees) == len(b.trees) and all(
        np.array_equal(getattr(x, name), getattr(y, name))
        for x, y in zip(a.trees, b.trees, strict=True)
        for name in names
    )


def measure(
    pooled: Pooled, report: Report, rounds: int, variants: Sequence[Variant], links: Sequence[Link]
) -> None:
    """Fill a table's rows."""
    n_silos, metric = len(pooled.sizes), pooled.source.metric
    reference: dict[int, list[tuple[float, float, float]]] = {}
    for max_bin in sorted({v.max_bin for v in variants}):
        reference[max_bin] = [pooled.xgboost(max_bin, rounds)]
    found: list[tuple[Variant, Run]] = []
    for variant in variants:
        n = rounds if variant.scored else max(rounds // 3, 3)
        run = local(pooled.folder, variant, n, pooled.source, n_silos, None)
        found.append((variant, run))
        name, total = variant.name, run.report["bytes"]
        report.note("bytes_up_a_silo_a_tree", "hedgerow", total["up"] / n_silos / n, "B", name)
        report.note("bytes_down_a_silo_a_tree", "hedgerow", total["down"] / n_silos / n, "B", name)
        report.note("exchanges_a_tree", "hedgerow", run.exchanges / n_silos / n, "", name)
        note_times(report, "hedgerow", run, name)
        own = pooled.engine(variant, n)
        assert run.model is not None
        report.note("equals_pooled", "hedgerow", float(same(own, run.model)), "", name)
        if variant.scored:
            report.note(metric, "hedgerow", pooled.score_of(run.model), "", name)
            report.note(f"{metric}, engine on all rows", "hedgerow", pooled.score_of(own), "", name)
    for max_bin, tries in reference.items():
        tries.append(pooled.xgboost(max_bin, rounds))
        name = f"{max_bin} bins"
        report.note(metric, "xgboost-pooled", tries[0][0], "", name)
        report.note("tree_wall", "xgboost-pooled", min(t[1] for t in tries), "s", name)
        report.note("tree_cpu", "xgboost-pooled", min(t[2] for t in tries), "s", name)
    walls: dict[int, float] = {}
    for max_bin in reference:
        peer = pooled.plugin(max_bin, rounds, None)
        if peer is not None:
            name, walls[max_bin] = f"{max_bin} bins", peer.seconds
            assert peer.margins is not None
            report.note(metric, "xgboost-federated", pooled.score(peer.margins), "", name)
            note_times(report, "xgboost-federated", peer, name)
    for variant, run in found:
        tries = reference[variant.max_bin]
        wall, cpu = (min(t[k] for t in tries) for k in (1, 2))
        report.note("tree_wall_ratio", "hedgerow", run.seconds / wall, "ratio", variant.name)
        total_cpu = sum(run.cpu.values())
        report.note("tree_cpu_ratio", "hedgerow", total_cpu / cpu, "ratio", variant.name)
        if variant.max_bin in walls:
            to_plugin = run.seconds / walls[variant.max_bin]
            report.note("tree_wall_ratio, plugin", "hedgerow", to_plugin, "ratio", variant.name)
    note_secrecy(report, {variant.name: run.seconds for variant, run in found})
    for link in links:
        over_link(pooled, report, max(rounds // 3, 3), variants, link)


def over_link(
    pooled: Pooled, report: Report, rounds: int, variants: Sequence[Variant], link: Link
) -> None:
    """Fill the rows of runs over slow lines."""
    seconds: dict[str, float] = {}
    for variant in variants:
        name = f"{variant.name}{link}"
        run = local(pooled.folder, variant, rounds, pooled.source, len(pooled.sizes), link)
        seconds[name] = run.seconds
        note_times(report, "hedgerow", run, name)
    for max_bin in sorted({v.max_bin for v in variants}):
        peer = pooled.plugin(max_bin, rounds, link)
        if peer is not None:
            note_times(report, "xgboost-federated", peer, f"{max_bin} bins{link}")
    note_secrecy(report, seconds)


def paired(report: Report, tables: Iterable[Pooled], rounds: int, variants: list[Variant]) -> None:
    """Add by how much the engine's metric is above XGBoost's, over tables of several seeds.

    Federated trees are the engine's (``equals_pooled``), so that nothing is federated here.
    """
    gaps: dict[str, list[float]] = defaultdict(list)
    for seed, pooled in enumerate(tables):
        theirs = {b: pooled.xgboost(b, rounds)[0] for b in {v.max_bin for v in variants}}
        for variant in variants:
            own = pooled.score_of(pooled.engine(variant, rounds, seed))
            gaps[variant.name].append(own - theirs[variant.max_bin])
    for name, found in gaps.items():
        report.note("gap to xgboost, paired mean", "hedgerow", float(np.mean(found)), "", name)
        deviation = float(np.std(found, ddof=min(1, len(found) - 1)))
        report.note("gap to xgboost, paired sd", "hedgerow", deviation, "", name)


def note_times(report: Report, who: str, run: Run, name: str) -> None:
    """Add rows of a run's wall and CPU time, and of what a slow link carried."""
    report.note("tree_wall", who, run.seconds, "s", name)
    for kind, seconds in run.cpu.items():
        report.note(f"tree_cpu, {kind}", who, seconds, "s", name)
    report.note("tree_cpu", who, sum(run.cpu.values()), "s", name)
    for way, carried in zip(("up", "down"), run.carried or (), strict=False):
        report.note(f"link_bytes_{way}_a_silo_a_tree", who, carried, "B", name)


def note_secrecy(report: Report, seconds: dict[str, float]) -> None:
    """Add what masks cost: lossless runs over those without masks."""
    for name, plain in seconds.items():
        masked = seconds.get(name.replace("without masks", "lossless"))
        if "without masks" in name and masked is not None:
            where = name.replace("without masks", "lossless")
            report.note("tree_wall_ratio, no masks", "hedgerow", masked / plain, "ratio", where)


def chosen(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Variant]:
    """Return the variants that were asked for, in the order of the list."""
    known = {v.name: v for v in VARIANTS}
    if arguments.variant:
        for name in arguments.variant:
            if name not in known:
                parser.error(f"--variant: there is no {name!r}; known are {'; '.join(known)}")
        return [v for v in VARIANTS if v.name in arguments.variant]
    wanted = tuple(name.strip() for name in arguments.variants.split(","))
    variants = [v for v in VARIANTS if v.name.startswith(wanted)]
    if not variants:
        parser.error(f"--variants: known are {'; '.join(known)}")
    return variants[:2] if arguments.quick else variants


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50,000 rows, 6 rounds, two variants")
    parser.add_argument("--data", type=Path, help="folder with the tables' Parquet files")
    parser.add_argument("--rounds", type=int, default=36)
    parser.add_argument("--rows", type=int, help="at most as many training rows")
    parser.add_argument("--silos", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=0, help="of paired gaps to XGBoost's metric")
    parser.add_argument("--tables", default="synthetic,flights", help="which, by commas")
    parser.add_argument("--variant", action="append", metavar="NAME", help="exact; may be repeated")
    parser.add_argument("--variants", default="", help="how their names begin, by commas")
    parser.add_argument("--link", action="append", type=Link.of, default=[], metavar="RTT:MBIT")
    parser.add_argument("--scripts", type=int, default=0, metavar="TIMES", help="nothing else")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rounds = 6 if arguments.quick else arguments.rounds
    if arguments.scripts:
        most = 20_000 if arguments.quick else arguments.rows or 100_000
        found = compare(most, arguments.silos, rounds, arguments.scripts)
        print(", ".join(f"{name} {value:.3f}" for name, value in found.items()))
        if arguments.json:
            arguments.json.write_text(json.dumps([found], indent=1))
        return
    n = 50_000 if arguments.quick else arguments.rows or 1 << 40
    variants = chosen(arguments, parser)
    if arguments.silos < LEAST_SILOS:
        print(f"secure sums need {LEAST_SILOS} silos: only variants without masks run")
        variants = [v for v in variants if not v.fields.get("secure", True)]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="hedgerow-bench-") as temporary:
        for name in (name.strip() for name in arguments.tables.split(",")):
            if name not in SOURCES:
                parser.error(f"--tables: there is no {name!r}; known are {', '.join(SOURCES)}")
            folder = Path(temporary) / name
            folder.mkdir()
            if not deal(name, arguments.data, folder, n, arguments.silos):
                print(f"{name}: no {SOURCES[name].file} in --data, skipped")
                continue
            pooled = Pooled(folder, SOURCES[name], arguments.silos)
            report = Report(name, rows)
            measure(pooled, report, rounds, variants, arguments.link)

            def dealt(name: str = name, folder: Path = folder) -> Iterator[Pooled]:
                for seed in range(arguments.seeds):
                    deal(name, arguments.data, folder, n, arguments.silos, seed)
                    yield Pooled(folder, SOURCES[name], arguments.silos)

            paired(report, dealt(), rounds, [v for v in variants if v.scored])
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
