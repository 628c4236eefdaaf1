"""FLeXGBoost's comparisons: trees a round, learning rates by rows and by gain, silos drawn.

``python -m benchmarks.bagging_rates [--data DIR] [--sets NAME ...] [--seeds 3] [--quick]
[--what growth,rates,drawn,flipped,named] [--json FILE]``. Without ``DIR`` the Adult data of the
examples are used; ``made`` is a made table, of which a million rows train. Jobs run in this process
(:func:`hedgerow.simulate`: model and bytes of ``hedgerow local``); a quarter of the rows tests, the
seed deals rows to silos and is the job's. Depth 8 as in the source.

- ``growth``: n = 1, 3 and 5 trees a silo and round between five equal silos, ``plain`` rate 0.1,
  36, 24 and 14 rounds. ``rounds`` is the first that reaches the best AUC of n = 1, less 0.001;
  ``trees`` and ``megabytes`` (up and down, of all silos) are what there was until then.
  ``auc_at_180_trees``, where the source compares, is of the last round with 180 trees or fewer.
- ``rates``: the rate of a silo by ``lr_mode``, 2, 5 and 20 silos, sizes equal, linear and square,
  24 rounds. ``step`` is the sum of a round's rates: 0.5, or what is left where ``rows`` divides the
  rate of ``plain`` and nobody raises it. ``early_auc`` is that of the sixth round.
- ``drawn``: ``silos_per_round`` of twenty silos of square sizes, ``rows``, step 0.5, 24 rounds.
- ``flipped``: one of five equal silos has each label of its rows the other way round, step 0.5, 24
  rounds; ``clean`` beside it. ``trimmed`` is ``gain`` with no gain above the round's median.
- ``named``: one bad silo of five, ``rows``, step 0.5, 24 rounds: labels ``flipped`` or ``random``,
  or trees ``scaled`` by four. ``bad_adds`` and ``least_sound`` are what leaving out the bad silo's
  trees, or a sound one's, takes from the AUC, by the audit's contributions on half of the test
  rows; a silo is named where the whole interval is below 0. ``auc_without``: trained again without
  whom it names. AUC are of the other half. In ``clean`` the first silo is as the others, in
  ``differ`` all are sound, and their labels dealt by Dirichlet(0.3). ``*_falls`` and ``*_by_sums``
  are the same by the audit's *loss of all rows*, which needs no sound rows: a silo is named where
  it is below 0 and below twice the median silo's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import hedgerow
from benchmarks._histogram_tables import made
from hedgerow.boosting.strategies.bagging import coordinator
from hedgerow.boosting.strategies.bagging import silo as bagging
from hedgerow.boosting.strategies.bagging.participation import factors
from hedgerow.boosting.tables import read_table
from hedgerow.coordinator.operator.library.audit.contribution import contributions
from hedgerow.coordinator.operator.library.audit.subject import opened
from hedgerow.services.wire.job_view import FinishedRound

EXAMPLES = Path(__file__).resolve().parent.parent / "examples/data"
DEPTH, STEP, SCALED = 8, 0.5, 4
MADE_ROWS = 1_333_334
Row = dict[str, Any]
Values = Iterator[tuple[str, str, float, str]]
"""Metric, who, value, unit."""


@dataclass(frozen=True)
class Curve:
    """A job by round: AUC on the test rows, and megabytes up and down of all silos so far."""

    auc: list[float]
    megabytes: list[float]
    cpu: float


@dataclass(frozen=True)
class Study:
    """A table and the seed; ``most`` rounds at most."""

    table: pa.Table
    seed: int
    most: int

    def curve(self, silos: int, scheme: str, eta: float, rounds: int = 24, **bagging: Any) -> Curve:
        """Run a job."""
        job = hedgerow.Job(
            "bagging", label="label", task="binary", seed=self.seed, min_silos=2,
            metrics=["auc"], eta=eta, max_depth=DEPTH, rounds=min(rounds, self.most), **bagging,
        )  # fmt: skip
        done: list[FinishedRound] = []
        started = time.process_time()
        hedgerow.simulate(
            job, self.table, silos, scheme=scheme, test=0.25, seed=self.seed, workers=1,
            watch=done.append,
        )  # fmt: skip
        spent = time.process_time() - started
        moved = accumulate((each.bytes_up + each.bytes_down) / 1e6 for each in done)
        return Curve([each.metrics["test"]["auc"] for each in done], list(moved), spent)


def growth(study: Study) -> Values:
    """Yield what 1, 3 and 5 trees a silo and round reach, and when."""
    silos, target = 5, 0.0
    for n, rounds in ((1, 36), (3, 24), (5, 14)):
        found = study.curve(silos, "iid", STEP / silos, rounds, lr_mode="plain", trees_per_round=n)
        target = target or max(found.auc) - 0.001
        who, enough = f"n = {n}", 36 // n
        yield "auc_at_180_trees", who, found.auc[min(enough, len(found.auc)) - 1], ""
        yield "best_auc", who, max(found.auc), ""
        reached = next((r + 1 for r, auc in enumerate(found.auc) if auc >= target), None)
        if reached is not None:
            yield "rounds", who, reached, "rounds"
            yield "trees", who, reached * silos * n, "trees"
            yield "megabytes", who, found.megabytes[reached - 1], "MB"
        yield "cpu_a_tree", who, 1e3 * found.cpu / (len(found.auc) * silos * n), "ms"


def rates(study: Study) -> Values:
    """Yield AUC by rate, number of silos and their sizes."""
    for silos in (2, 5, 20):
        for scheme in ("iid", "linear", "square"):
            divided = (("rows", STEP / silos), ("rows", STEP), ("gain", STEP))
            for mode, eta in (("plain", STEP / silos), *divided):
                found = study.curve(silos, scheme, eta, lr_mode=mode)
                step = STEP if mode == "plain" else eta
                who = f"{silos} silos, {scheme}, {mode}, step {step:g}"
                yield "early_auc", who, found.auc[min(5, len(found.auc) - 1)], ""
                yield "auc", who, found.auc[-1], ""


def drawn(study: Study) -> Values:
    """Yield AUC and megabytes by the number of silos that a round draws."""
    for count in (20, 10, 5, 2):
        found = study.curve(20, "square", STEP, lr_mode="rows", silos_per_round=count)
        who = f"{count} of 20"
        yield "auc", who, found.auc[-1], ""
        yield "best_auc", who, max(found.auc), ""
        yield "megabytes", who, found.megabytes[-1], "MB"


def with_wrong(tables: list[pa.Table], how: str, seed: int) -> list[pa.Table]:
    """Return the silos' tables, of which the first has wrong labels."""
    if how not in ("flipped", "random"):
        return tables
    first = tables[0]
    labels = 1 - first.column("label").to_numpy()
    if how == "random":
        labels = np.random.default_rng(seed).permutation(labels)
    at = first.column_names.index("label")
    return [first.set_column(at, "label", pa.array(labels)), *tables[1:]]


def together(tables: list[pa.Table]) -> pa.Table:
    """Return silos' tables as one, dealt by its column ``_silo``."""
    own = [each.append_column("_silo", pa.array([f"silo-{k}"] * len(each)))
           for k, each in enumerate(tables)]  # fmt: skip
    return pa.concat_tables(own)


def flipped(study: Study) -> Values:
    """Yield AUC by rate with all silos right, and with one whose labels are the other way round."""
    pieces = hedgerow.split(study.table, 5, test=0.25, seed=study.seed)
    test, tables = pieces.pop("test"), list(pieces.values())
    for how in ("clean", "flipped"):
        rows = together(with_wrong(tables, how, study.seed))
        for mode, eta in (("plain", STEP / 5), ("rows", STEP), ("gain", STEP), ("trimmed", STEP)):
            trims = mode == "trimmed"
            job = hedgerow.Job(
                "bagging", label="label", task="binary", seed=study.seed, min_silos=2,
                eta=eta, max_depth=DEPTH, rounds=min(24, study.most),
                lr_mode="gain" if trims else mode,
            )  # fmt: skip
            with patch.object(coordinator, "factors", trimmed) if trims else nullcontext():
                run = hedgerow.simulate(job, rows, scheme="column:_silo", test=0.0, workers=1)
            score = run.model.evaluate(test)["auc"]
            yield (
                "auc",
                f"{'clean' if how == 'clean' else 'one of five flipped'}, {mode}",
                score,
                "",
            )


def trimmed(mode: str, planned: Any, eta: float, rows: Any, gains: dict[Any, float]) -> Any:
    """Return the rates of ``gain`` where no silo's gain counts more than the median one's."""
    most = statistics.median(gains.values())
    return factors(mode, planned, eta, rows, {who: min(own, most) for who, own in gains.items()})


@contextmanager
def scaled(silo: str) -> Iterator[None]:
    """Have a silo take :data:`SCALED` times the rate that it is given, within ``leaf_bound``."""
    honest = bagging._BaggingSilo.train

    def train(half: Any, standing: Any) -> Any:
        if half.start.silo != silo:
            return honest(half, standing)
        own = half.parameters
        half.parameters = replace(own, leaf_bound=own.leaf_bound / SCALED)
        try:
            return honest(half, replace(standing, eta=SCALED * standing.eta))
        finally:
            half.parameters = own

    with patch.object(bagging._BaggingSilo, "train", train):
        yield


def named(study: Study) -> Values:
    """Yield AUC with one bad silo, what silos add by the audit, and AUC without whom it names."""
    job = hedgerow.Job(
        "bagging", label="label", task="binary", seed=study.seed, min_silos=2, metrics=["auc"],
        eta=STEP, max_depth=DEPTH, rounds=min(24, study.most), evaluate="none",
    )  # fmt: skip
    for how in ("clean", "flipped", "random", "scaled", "differ"):
        scheme = "dirichlet:0.3" if how == "differ" else "iid"
        pieces = hedgerow.split(study.table, 5, scheme=scheme, test=0.25, seed=study.seed)
        test, tables = pieces.pop("test"), list(pieces.values())
        judge, test = test.slice(0, len(test) // 2), test.slice(len(test) // 2)
        own = with_wrong(tables, how, study.seed)
        with TemporaryDirectory() as name, scaled("silo-0" if how == "scaled" else ""):
            run = hedgerow.simulate(
                job, together(own), scheme="column:_silo", test=0.0, workers=1, out=f"{name}/run"
            )
            assert run.folder
            found = contributions(opened(run.folder, {"silo-1": own[1]}, judge))
            score = run.model.evaluate(test)["auc"]
        yield "auc", how, score, ""
        adds, falls = (
            {each.silo: each.measures[what] for each in found}
            for what in ("leave one out", "loss of all rows")
        )
        yield "bad_adds", how, adds["silo-0"].value, ""
        yield "least_sound", how, min(adds[f"silo-{k}"].value for k in range(1, 5)), ""
        yield "bad_falls", how, falls["silo-0"].value, ""
        yield "least_sound_falls", how, min(falls[f"silo-{k}"].value for k in range(1, 5)), ""
        middle = statistics.median(each.value for each in falls.values())
        rules = (
            ("", frozenset(each for each in adds if adds[each].high < 0)),
            ("_by_sums", frozenset(e for e in falls if falls[e].value < min(0.0, 2 * middle))),
        )
        trained: dict[frozenset[str], float] = {frozenset(): score}
        for rule, out in rules:
            yield f"bad_named{rule}", how, float("silo-0" in out), ""
            yield f"sound_named{rule}", how, float(len(out - {"silo-0"})), ""
            left = [each for k, each in enumerate(own) if f"silo-{k}" not in out]
            if out not in trained and len(left) > 1:
                rows = together(left)
                run = hedgerow.simulate(job, rows, scheme="column:_silo", test=0.0, workers=1)
                trained[out] = run.model.evaluate(test)["auc"]
            yield f"auc_without{rule}", how, trained.get(out, score), ""


WHAT: dict[str, Callable[[Study], Values]] = {
    "growth": growth, "rates": rates, "drawn": drawn, "flipped": flipped, "named": named,
}  # fmt: skip


def main() -> None:
    """Print means and standard deviations over seeds; write them to a file where one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=EXAMPLES, help="folder of Parquet files")
    parser.add_argument("--sets", nargs="+", default=["adult"])
    parser.add_argument("--what", default=",".join(WHAT))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed, four rounds, growth only")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    what, seeds, most = given.what.split(","), given.seeds, 36
    if given.quick:
        what, seeds, most = ["growth"], 1, 4
    rows: list[Row] = []
    for name in given.sets:
        table = (
            made(MADE_ROWS, 7)
            if name == "made"
            else read_table(str(given.data / f"{name}.parquet"))
        )
        for part in what:
            values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
            for seed in range(seeds):
                for metric, who, value, unit in WHAT[part](Study(table, seed, most)):
                    values[metric, who, unit].append(value)
            for (metric, who, unit), found in values.items():
                row = {
                    "metric": metric, "who": who, "value": statistics.fmean(found), "unit": unit,
                    "sd": statistics.stdev(found) if len(found) > 1 else 0.0, "n": len(found),
                    "set": name, "what": part,
                }  # fmt: skip
                rows.append(row)
                print(
                    f"{name} {metric:18s} {who:36s} {row['value']:10.4f} ± {row['sd']:7.4f} "
                    f"of {row['n']} {unit}",
                    flush=True,
                )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
