"""Membership tests on FedGA's scores: what a silo's scores reveal of single rows.

``python -m benchmarks.fedga_membership [--data DIR] [--sets NAME ...] [--quick] [--json FILE]``.
A search runs over 20 silos; the adversary sees every score of a silo and the structures. Two
adversaries, both given a row and asked whether it is among the silo's:

- ``shadow``: has other rows of the same distribution, as many as it likes, and no row of the silo.
  It scores the same structures on silos that it makes up, with and without the row, and uses
  Fisher's discriminant between both (mean shift of the scores, covariance over made-up silos).
- ``all-but-one``: knows all other rows of the silo and picks the one of two candidate rows whose
  scores are nearer to those seen; the worst case, against which only differential privacy of the
  scores would help.

Metrics: ``auc`` and ``true_positives_at_5`` (% caught at 5 % false alarms; 5 is chance) of the
shadow adversary, ``right_choices`` (%; 50 is chance) of the other, by how many structures' scores
it uses and to how many ``decimals`` they are rounded (3 is what the strategy sends).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.fedga import EXAMPLES, Row, federate, load
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.metrics import exact_auc
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.fedga.checkpoint import SearchState
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.trees.genetics import Genes
from hedgerow.boosting.trees.ranked import rank_table
from hedgerow.boosting.trees.structures import fitness_of

Floats = NDArray[np.float64]
N_SILOS = 20


def scores_of(data: Dataset, structures: Genes) -> Floats:
    """Return unrounded scores of the structures on some rows."""
    table = rank_table(data)
    return fitness_of(table, structures, table.all_rows, None, 1)


def join(rows: Dataset, more: Dataset) -> Dataset:
    """Return both tables' rows."""
    return Dataset(
        rows.schema,
        np.concatenate([rows.X, more.X]),
        np.concatenate([rows.labels, more.labels]),
    )


class Shadow:
    """An adversary with rows of its own: made-up silos, scored on the structures that it has seen.

    Parameters
    ----------
    pool : Dataset
        The adversary's rows.
    size : int
        Rows of a silo.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        pool: Dataset,
        structures: Genes,
        size: int,
        n_shadows: int,
        n_pairs: int,
        decimals: int,
    ) -> None:
        self._structures = structures
        drawn = [rng.choice(pool.n_samples, size, replace=False) for _ in range(n_shadows)]
        scores = np.array([scores_of(pool.take(rows), structures) for rows in drawn])
        rounded = np.round(scores, decimals)
        self._mean = rounded.mean(axis=0)
        covariance = np.cov(rounded, rowvar=False)
        # Shrinkage: more structures than made-up silos must not be trusted to the last one.
        ridge = 0.1 * np.trace(covariance) / len(covariance)
        self._inverse = np.linalg.inv(covariance + ridge * np.eye(len(covariance)))
        self._bases = [pool.take(rows[1:]) for rows in drawn[:n_pairs]]
        self._base_scores = scores[:n_pairs]

    def shift(self, row: Dataset) -> Floats:
        """Return how much the row moves the scores of made-up silos, on average."""
        with_row = [scores_of(join(base, row), self._structures) for base in self._bases]
        mean: Floats = np.mean(np.array(with_row) - self._base_scores, axis=0)
        return mean

    def statistic(self, seen: Floats, shift: Floats) -> float:
        """Return Fisher's discriminant, scaled by its own spread."""
        direction = self._inverse @ shift
        centre = self._mean + shift / 2.0
        spread = float(max(float(direction @ shift), 1e-300)) ** 0.5
        found: float = float(direction @ (seen - centre)) / spread
        return found


def attack(data: Dataset, name: str, size: int, quick: bool) -> list[Row]:
    """Return the figures of one data set."""
    rng = np.random.default_rng(7)
    shuffled = rng.permutation(data.n_samples)
    n_silos, n_targets = (3, 6) if quick else (N_SILOS, 6)
    n_shadows, n_pairs = (300, 15) if quick else (800, 15)
    ends = np.cumsum([N_SILOS * size, max(N_SILOS * n_targets, size)])
    inside, outside, rest = np.split(shuffled, ends)
    silos = {
        Silo(f"silo-{k:02}"): data.take(rows) for k, rows in enumerate(np.split(inside, N_SILOS))
    }
    ran = federate(JobParameters("bench", FedGA(), task=data.schema.task), silos)
    generation = SearchState.decode(ran.rounds[-1].checkpoint).generation
    everything = np.array([np.frombuffer(key, dtype=np.int16) for key in generation.known])
    structures = everything[rng.permutation(len(everything))[: 100 if quick else 400]]
    seen = np.array([scores_of(rows, structures) for rows in silos.values()])
    case = {"set": name, "rows": size, "structures_scored": len(everything)}
    found: list[Row] = []
    pool = data.take(rest)
    targets: list[tuple[int, bool, Dataset]] = []
    for number, rows in enumerate(list(silos.values())[:n_silos]):
        members = rng.choice(size, n_targets, replace=False)
        targets += [(number, True, rows.take(np.array([at]))) for at in members]
        strangers = rng.choice(outside, n_targets, replace=False)
        targets += [(number, False, data.take(np.array([at]))) for at in strangers]
    truth = np.array([is_member for _, is_member, _ in targets], dtype=np.float64)
    for count in (10, 100) if quick else (100, 400):
        shifts: list[Floats] = []
        for decimals in (3, 2):
            shadow = Shadow(
                np.random.default_rng(11), pool, structures[:count], size, n_shadows, n_pairs,
                decimals,
            )  # fmt: skip
            shifts = shifts or [shadow.shift(row) for _, _, row in targets]
            statistic = np.array(
                [
                    shadow.statistic(np.round(seen[number, :count], decimals), shift)
                    for (number, _, _), shift in zip(targets, shifts, strict=True)
                ]
            )
            limit = np.quantile(statistic[truth == 0], 0.95)
            caught = 100.0 * float((statistic[truth == 1] > limit).mean())
            auc = exact_auc(truth > 0.0, statistic)
            more = {**case, "structures": count, "decimals": decimals, "n": len(truth)}
            found.append({"metric": "auc", "who": "shadow", "value": auc, "unit": "", **more})
            found.append(
                {"metric": "true_positives_at_5", "who": "shadow", "value": caught, "unit": "%",
                 **more}
            )  # fmt: skip
    found += _all_but_one(rng, data, silos, outside, structures, case, quick)
    return found


def _all_but_one(
    rng: np.random.Generator,
    data: Dataset,
    silos: dict[Silo, Dataset],
    outside: NDArray[np.intp],
    structures: Genes,
    case: dict[str, object],
    quick: bool,
) -> list[Row]:
    counts = (1, 10, 100) if quick else (1, 10, 100, 400)
    right = {(count, decimals): [] for count in counts for decimals in (3, 2)}  # type: ignore[var-annotated]
    for rows in silos.values():
        for _ in range(2 if quick else 10):
            at = int(rng.integers(rows.n_samples))
            others = rows.take(np.delete(np.arange(rows.n_samples), at))
            true = scores_of(rows, structures)
            false = scores_of(join(others, data.take(rng.choice(outside, 1))), structures)
            for count, decimals in right:
                seen = np.round(true[:count], decimals)
                gap = np.abs(seen - np.round(false[:count], decimals)).sum()
                # Equal scores leave a coin to toss.
                right[count, decimals].append(1.0 if gap > 0 else 0.5)
    return [
        {"metric": "right_choices", "who": "all-but-one", "value": 100.0 * float(np.mean(values)),
         "unit": "%", **case, "structures": count, "decimals": decimals, "n": len(values)}
        for (count, decimals), values in right.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=EXAMPLES, help="folder of Parquet files")
    parser.add_argument("--sets", nargs="*", default=["adult", "tb_electricity"])
    parser.add_argument("--rows", type=int, nargs="*", default=[100, 500])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sets, arguments.rows = ["adult"], [100]
    measured: list[Row] = []
    for name in arguments.sets:
        data = load(arguments.data, name)
        if data is None:
            print(f"{name}: no such file, skipped")
            continue
        for size in arguments.rows:
            measured += attack(data, name, size, arguments.quick)
    for entry in measured:
        fixed = ("metric", "who", "value", "unit")
        rest = " ".join(f"{key}={value}" for key, value in entry.items() if key not in fixed)
        print(
            f"{entry['metric']:20s} {entry['who']:12s} {entry['value']:9.4g} "
            f"{entry['unit']:2s} {rest}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
