"""FedXGBllr's tables: accuracy beside pooled XGBoost and averages, CPU time, bytes on the wire.

``python -m benchmarks.fedxgbllr [--what published,schedules,time,bytes,default,ablations,simfl]
[--data DIR] [--sets a9a,abalone] [--silos 2,5,10] [--seeds 5] [--quick] [--json FILE]``. ``DIR``
has tables named as the paper's sets (``a9a.parquet``, ...); without it the Adult data of the
examples are used. As in the paper, a quarter of the rows is the test set and the rest is divided
equally. Choices are made on held-out rows of each silo, never on test rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._fedxgbllr_played import (
    BOOSTERS,
    REGRESSIONS,
    SETS,
    TREES,
    Floats,
    Played,
    Study,
    combiners,
    grow,
    load_set,
    margins_of,
    studies,
    wire_bytes,
)
from benchmarks._simfl_federated import simfl, simfl_bytes
from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.summaries import merge_summaries, summarise
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.fedxgbllr.agreement import AgreedTerms, validation_metrics
from hedgerow.boosting.strategies.fedxgbllr.combiners import TrainingRows
from hedgerow.boosting.strategies.fedxgbllr.heads import Head, HeadKind
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals, LeafTable
from hedgerow.boosting.strategies.fedxgbllr.network import HeadCombiner
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.fedxgbllr.steps import (
    EnsembleOffer,
    MetricSums,
    PointChoice,
    RateSums,
)
from hedgerow.boosting.strategies.fedxgbllr.training import RoundSchedule, fit_head
from hedgerow.boosting.strategies.fedxgbllr.uploads import (
    cut_columns,
    encode_trees,
    uncut,
    with_fences,
)
from hedgerow.boosting.trees.loading import trees_of
from hedgerow.boosting.trees.local import split_rows

Row = dict[str, object]


def published(study: Study) -> Iterator[tuple[str, float]]:
    """Yield (who, score) of networks trained as published, and of combiners without one.

    ``published-text`` and ``-code`` are ``paper`` of that name, the others at defaults with the
    code's booster; ``shared-`` with ``share_penalties``. All are of the last round.
    """
    for name, booster in BOOSTERS.items():
        other = replace(study, job=replace(study.job, booster=booster))
        yield f"published-{name}", last_round(other, FedXGBllr(paper=name))
    for who, strategy in combiners(study.task).items():
        yield who, last_round(study, strategy)
    shared = combiners(study.task)["leaves"]
    yield "shared-leaves", last_round(study, shared, shared=True)


def schedules(study: Study) -> Iterator[tuple[str, float]]:
    """Yield scores by epochs a round and rounds, of the default's network without held-out rows."""
    n_steps = TREES // len(study.silos)
    boosters = [grow(study, part, n_steps, n) for n, part in enumerate(study.silos)]
    played = Played.of(study, boosters, study.silos)
    for epochs, most in ((1, 100), (10, 100), (100, 10)):
        strategy = FedXGBllr(epochs=epochs, rounds=most, validation=0.0)
        for number, (combiner, state, _) in enumerate(played.rounds(strategy)):
            if number in (1, 10, 100):
                margins = combiner.margins(state.solution, played.test)[:, 0]
                yield f"{epochs}, {number}", study.score(margins)


def last_round(study: Study, strategy: FedXGBllr, *, shared: bool = False) -> float:
    """Return the score of a strategy's last round, of trees and rounds on all rows."""
    n_steps = TREES // len(study.silos)
    boosters = [grow(study, part, n_steps, n, shared=shared) for n, part in enumerate(study.silos)]
    played = Played.of(study, boosters, study.silos)
    for combiner, state, _ in played.rounds(strategy):
        last = combiner, state
    return study.score(last[0].margins(last[1].solution, played.test)[:, 0])


def held_back(study: Study, share: float, *, shared: bool = False) -> tuple[Played, Dataset]:
    """Return a federation whose trees and combiners never see a share of rows, and these rows."""
    rng = [np.random.default_rng([study.job.seed, n]) for n in range(len(study.silos))]
    parts = [split_rows(part.n_samples, share, rng[n]) for n, part in enumerate(study.silos)]
    kept = [part.take(rows) for part, (rows, _) in zip(study.silos, parts, strict=True)]
    held = [part.take(rows) for part, (_, rows) in zip(study.silos, parts, strict=True)]
    n_steps = TREES // len(kept)
    boosters = [grow(study, part, n_steps, n, shared=shared) for n, part in enumerate(kept)]
    return Played.of(study, boosters, kept), _together(held)


@dataclass(frozen=True)
class Trained:
    """A network's score on test rows at the round that held-out rows choose.

    Parameters
    ----------
    seconds : float
        CPU of all silos' training and of their scores.
    """

    score: float
    best_round: int
    seconds: float


def trained(study: Study, strategy: FedXGBllr, *, shared: bool = False) -> Trained:
    """Return what a network gives: of rounds 0 to R the best on held-out rows, or the last."""
    played, valid = held_back(study, strategy.held_out, shared=shared)
    leaves = LeafOrdinals.of([tree for part in played.trees for tree in part], valid.X)
    judge, seconds, best = replace(study, test=valid), [0.0], (np.inf, 0, np.nan)
    for number, (combiner, state, _) in enumerate(played.rounds(strategy, seconds=seconds)):
        started = time.process_time()
        margins = combiner.margins(state.solution, leaves)[:, 0]
        loss = _loss(judge, margins) if strategy.held_out else -float(number)
        seconds.append(time.process_time() - started)
        if loss < best[0]:
            score = study.score(combiner.margins(state.solution, played.test)[:, 0])
            best = loss, number, score
    return Trained(best[2], best[1], sum(seconds))


def defaults(study: Study) -> Iterator[tuple[str, float]]:
    """Yield (who, score) of the mean of the ensembles and of the default beside it."""
    n_steps = TREES // len(study.silos)
    boosters = [grow(study, part, n_steps, n) for n, part in enumerate(study.silos)]
    margins = np.mean([margins_of(booster, study.test) for booster in boosters], axis=0)
    yield "mean", study.score(margins)
    result = trained(study, FedXGBllr())
    yield "cnn", result.score
    yield "cnn-best-round", result.best_round


def ablations(study: Study) -> Iterator[tuple[str, float]]:
    """Yield (who, score) of the paper's network and of its two ablations, at equal epochs."""
    for kind in HeadKind:
        yield kind.value, trained(study, FedXGBllr(combiner=kind.value)).score


def _loss(study: Study, margins: Floats) -> float:
    """Return the mean logloss or squared error on a study's test rows."""
    if study.task is Task.BINARY:
        y = study.test.labels
        return float(np.mean(np.logaddexp(0, margins) - y * margins))
    return study.score(margins)


def pooled(study: Study) -> Iterator[tuple[str, float]]:
    """Yield the score of XGBoost on the rows of all silos."""
    booster = grow(study, _together(study.silos), TREES, 99)
    yield "xgboost-pooled", study.score(margins_of(booster, study.test))


def _together(parts: Sequence[Dataset]) -> Dataset:
    return replace(
        parts[0],
        features=np.concatenate([part.X for part in parts]),
        y=np.concatenate([part.labels for part in parts]),
    )


def times(study: Study) -> Iterator[Row]:
    """Yield CPU seconds a silo of the paper's schedule and of the fast profile, and scores."""
    n_silos = len(study.silos)
    boosters = [grow(study, part, TREES // n_silos, n) for n, part in enumerate(study.silos)]
    played = Played.of(study, boosters, study.silos)
    profiles = {
        "paper-schedule": FedXGBllr(epochs=100),
        "fast-profile": FedXGBllr(),
        **combiners(study.task),
    }
    for name, strategy in profiles.items():
        seconds: list[float] = []
        if strategy.is_network:
            result = trained(study, strategy)
            seconds, score = [result.seconds], result.score
        else:
            for combiner, state, _ in played.rounds(strategy, seconds=seconds):
                last = combiner, state
            score = study.score(last[0].margins(last[1].solution, played.test)[:, 0])
        metric = f"{study.name}_{n_silos}_silos_{name}"
        yield _row(f"{metric}_cpu_a_silo", "hedgerow", sum(seconds) / n_silos, "s")
        yield _row(f"{metric}_score", "hedgerow", score, _unit(study.name))
    yield from step_times()


def step_times(n_rows: int = 6400) -> Iterator[Row]:
    """Yield CPU microseconds of a step of 64 rows, ours and with torch's own modules."""
    import torch

    rng = np.random.default_rng(0)
    offsets = np.arange(TREES + 1) * 60
    table = LeafTable(
        rng.normal(0, 0.05, 60 * TREES).astype(np.float32), offsets, np.zeros(TREES, np.int64)
    )
    leaves = LeafOrdinals(table, rng.integers(0, 60, (n_rows, TREES)).astype(np.uint8))
    y = (rng.random(n_rows) < 0.5).astype(float)
    head = Head(HeadKind.CNN, 2, TREES // 2)
    weights = head.initial(rng, table.groups)
    rows = TrainingRows(leaves, y)
    for n_epochs in (1, 5):
        started = time.process_time()
        fit_head(head, weights, rows, Task.BINARY, RoundSchedule(n_epochs, 64), rng)
    ours = (time.process_time() - started) / (5 * n_rows / 64)
    torch.set_num_threads(1)
    network = torch.nn.Sequential(
        torch.nn.Conv1d(1, 64, TREES // 2, stride=TREES // 2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 1),
    )
    adam = torch.optim.Adam(network.parameters(), betas=(0.5, 0.999))
    X = torch.from_numpy(leaves.outputs(np.arange(n_rows)))
    labels = torch.from_numpy(y.astype(np.float32))
    measure = torch.nn.BCEWithLogitsLoss()
    started = time.process_time()
    for batch in torch.randperm(n_rows).split(64):
        adam.zero_grad()
        measure(network(X[batch, None, :])[:, 0], labels[batch]).backward()
        adam.step()
    plain = (time.process_time() - started) / (n_rows / 64)
    yield _row("step_of_64_rows", "hedgerow", 1e6 * ours, "µs")
    yield _row("step_of_64_rows", "torch-modules", 1e6 * plain, "µs")


SHRUNK: dict[str, dict[str, Any]] = {
    "lossless": {},
    "leaf_bits=16": {"leaf_bits": 16},
    "shared_cuts=64": {"shared_cuts": 64},
    "weight_bits=8": {"weight_bits": 8},
    "weight_bits=4": {"weight_bits": 4},
    "weight_bits=8 leaf_bits=16": {"weight_bits": 8, "leaf_bits": 16},
}


def traffic(study: Study) -> Iterator[Row]:
    """Yield bytes of network, trees and all, of all silos together, exact and shrunk."""
    n_silos = len(study.silos)
    for name, options in SHRUNK.items():
        strategy = FedXGBllr(trees=TREES, **options)
        sent, score = federation_bytes(study, strategy)
        for kind, value in {**sent, "total": sum(sent.values())}.items():
            metric = f"{study.name}_{n_silos}_silos_bytes_{kind} {name}"
            yield _row(metric, "hedgerow", value, "B")
        yield _row(
            f"{study.name}_{n_silos}_silos_score {name}", "hedgerow", score, _unit(study.name)
        )
    plain = [grow(study, part, TREES // n_silos, n) for n, part in enumerate(study.silos)]
    ubjson = sum(len(booster.save_raw("ubj")) for booster in plain)
    yield _row(f"{study.name}_{n_silos}_silos_bytes_trees UBJSON", "formula", n_silos * ubjson, "B")
    total = f"{study.name}_{n_silos}_silos_bytes_total"
    yield _row(total, "simfl-formula", simfl_bytes(study), "B")
    network = 4 * Head(HeadKind.CNN, n_silos, TREES // n_silos).n_parameters
    yield _row(
        f"{study.name}_{n_silos}_silos_bytes_network 2KR·SZ", "formula", 20 * n_silos * network, "B"
    )


def federation_bytes(study: Study, strategy: FedXGBllr) -> tuple[dict[str, int], float]:
    """Return payload bytes by kind, of all silos up and down, and the score they buy."""
    n_silos, schema = len(study.silos), study.silos[0].schema
    job = replace(study.job, parameters=strategy)
    terms = AgreedTerms.start(strategy, job, schema, n_silos)
    sent = {"network": 0, "trees": 0}
    if strategy.shared_cuts:
        numeric = [j for j, f in enumerate(schema.features) if not f.is_categorical]
        points = {
            j: [summarise(p.X[:, j], 4 * strategy.shared_cuts) for p in study.silos]
            for j in numeric
        }
        inner = [np.empty(0, np.float32)] * schema.n_features
        for j, given in points.items():
            inner[j] = merge_summaries(given, strategy.shared_cuts)
            sent["trees"] += sum(12 * len(p.values) + 8 for p in given)
        terms = replace(terms, cuts=with_fences(inner))
        sent["trees"] += n_silos * wire_bytes(terms.shared_cuts)
    trees = []
    for number, part in enumerate(study.silos):
        X = part.X if terms.cuts is None else cut_columns(part.X, terms.cuts, schema)
        grown = trees_of(grow(study, replace(part, features=X), TREES // n_silos, number))
        if terms.cuts is not None:
            grown = uncut(grown, terms.cuts, schema)
        ensemble = encode_trees(grown, terms.form)
        offer = EnsembleOffer(part.n_samples, ensemble)
        sent["trees"] += n_silos * wire_bytes(offer)  # one up, K - 1 down
        trees.append(terms.decode(ensemble, f"silo {number}"))
    every = [tree for part in trees for tree in part]
    rows = [
        TrainingRows(LeafOrdinals.of(every, part.X), part.labels - study.center)
        for part in study.silos
    ]
    played = Played(study, trees, rows, LeafOrdinals.of(every, study.test.X))
    for combiner, state, size in played.rounds(strategy):
        sent["network"] += size
        last = combiner, state
    score = study.score(last[0].margins(last[1].solution, played.test)[:, 0])
    if isinstance(last[0], HeadCombiner):
        sent["rates"] = n_silos * wire_bytes(RateSums(np.zeros(TREES, np.float32), 1))
        sent["scores"] = n_silos * _score_bytes(strategy, job, last[1].solution)
    return sent, score


def _score_bytes(strategy: FedXGBllr, job: JobParameters, point: NDArray[np.float32]) -> int:
    """Return a silo's bytes for scores on held-out rows, and an earlier round's weights back."""
    width = metrics.width(validation_metrics(job), 1)
    each = wire_bytes(MetricSums(np.ones(width))) + wire_bytes(PointChoice(0, False, False))
    back = wire_bytes(PointChoice(0, False, True, point))
    return strategy.n_rounds * each + 8 * width + back if strategy.held_out else 0


def _unit(name: str, who: str = "") -> str:
    if who.endswith(("bytes", "best-round")):
        return "B" if who.endswith("bytes") else "round"
    return "MSE" if name in REGRESSIONS else "%"


def _row(metric: str, who: str, value: float, unit: str) -> Row:
    return {"metric": metric, "who": who, "value": float(value), "unit": unit}


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return mean and half width of the 95 % interval of paired differences (Student's t)."""
    from scipy import stats

    mean = statistics.mean(differences)
    if len(differences) < 2:
        return mean, float("nan")
    spread = statistics.stdev(differences) / len(differences) ** 0.5
    return mean, float(stats.t.ppf(0.975, len(differences) - 1) * spread)


def summary(found: dict[tuple[str, int, str], list[float]]) -> Iterator[Row]:
    """Yield mean and spread over seeds, and paired differences from pooled and from the mean."""
    for (name, n_silos, who), values in found.items():
        metric = f"{name}_{n_silos}_silos"
        unit = _unit(name, who)
        yield _row(metric, who, statistics.mean(values), unit)
        if unit in ("B", "round"):
            continue
        if len(values) > 1:
            yield _row(f"{metric}_sd", who, statistics.stdev(values), unit)
        for other in ("xgboost-pooled", "mean"):
            base = found.get((name, n_silos, other), [])
            if who != other and len(base) == len(values):
                gaps = [a - b for a, b in zip(values, base, strict=True)]
                difference, half = interval(gaps)
                yield _row(f"{metric}_minus_{other}", who, difference, unit)
                yield _row(f"{metric}_minus_{other}_half_width", who, half, unit)


def main() -> None:
    """Print rows; write them to a file where one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", default="time,bytes")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--silos", default="2,5,10")
    parser.add_argument(
        "--booster", choices=BOOSTERS, default="code", help="the paper's code, or its text"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="Adult or the first set, one seed")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    names = given.sets.split(",") if given.data else ["adult"]
    silos = [int(k) for k in given.silos.split(",")]
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    if given.quick:
        names, silos, seeds = names[:1], silos[:1], range(1)
    rows: list[Row] = []

    def tell(row: Row) -> None:
        rows.append(row)
        print(f"{row['metric']:60} {row['who']:20} {row['value']:14.4f} {row['unit']}", flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1))

    tables = {name: load_set(name, given.data) for name in names}
    what = given.what.split(",")
    if "time" in what:
        for row in times(studies(names[0], tables[names[0]], 2, 0)):
            tell(row)
    if "bytes" in what:
        for name in names:
            for row in traffic(studies(name, tables[name], silos[-1], 0)):
                tell(row)
    scored = {
        "published": published,
        "schedules": schedules,
        "default": defaults,
        "ablations": ablations,
        "simfl": lambda study: chain(pooled(study), defaults(study), simfl(study)),
    }
    for kind in (kind for kind in scored if kind in what):
        found: dict[tuple[str, int, str], list[float]] = {}
        for seed, name, n_silos in product(seeds, names, silos):
            study = studies(name, tables[name], n_silos, seed, BOOSTERS[given.booster])
            for who, score in scored[kind](study):
                found.setdefault((name, n_silos, who), []).append(score)
                metric = f"{name}_{n_silos}_silos_seed_{seed}"
                tell(_row(metric, who, score, _unit(name, who)))
        for row in summary(found):
            tell(row)


if __name__ == "__main__":
    main()
