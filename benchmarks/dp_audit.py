"""Empirical epsilon: how well an adversary tells neighbouring tables apart by what silos send.

``python -m benchmarks.dp_audit [--runs N] [--quick] [--break half-noise|sensitivity] [--json
FILE]``. The game: a silo's table has a row more, or has not; the adversary knows both tables and
all that differential privacy does not hide, sees one answer, and guesses. By the likelihood ratio
of the discrete Laplace distribution it orders answers; on one half of the runs it picks the
threshold that serves it best, on the other half it is measured. With true and false alarms come
Clopper-Pearson bounds, and from them a lower bound of epsilon that holds with 99 %: for a mechanism
with the epsilon that it claims it is above that in fewer than one of 100 audits. The bound is below
epsilon for want of runs, and where noise is spread over many counts, since then no single event
tells tables apart by the whole of epsilon.

What is audited is the silo's own code: :class:`Counter` of the private tree and the row count of
FedGA, with a fresh key for each run, through the accountant, which charges what is claimed.

``--break`` audits a mechanism with a fault: half the noise, or noise for one count where a row
changes several. The exit code is 1 if a mechanism of :data:`CAUGHT` is not caught then, and if a
true one ever is.

References
----------
Jagielski, Ullman, Oprea, Auditing Differentially Private Machine Learning, NeurIPS 2020.
Ding, Wang, Wang, Zhang, Kifer, Detecting Violations of Differential Privacy, CCS 2018.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.budget import BudgetLedger
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters, SiloStart
from hedgerow.boosting.strategies.dp_tree.bins import EdgeSearch
from hedgerow.boosting.strategies.dp_tree.noisy_tree import extend, open_root
from hedgerow.boosting.strategies.dp_tree.parameters import DPTree
from hedgerow.boosting.strategies.dp_tree.queries import Queries
from hedgerow.boosting.strategies.dp_tree.silo import Counter
from hedgerow.boosting.strategies.dp_tree.steps import Query
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedga.silo import noisy_row_count
from hedgerow.boosting.sums.answers import Counts, NoisyAnswers, NoisyPart
from hedgerow.crypto.key_agreement import Entropy
from hedgerow.crypto.local_vault import LocalVault

CONFIDENCE = 0.99
N_FEATURES = 3
SCHEMA = Schema(
    tuple(Feature(f"x{k}") for k in range(N_FEATURES)), "label", Task.BINARY, 2
)  # fmt: skip
EDGES = (np.array([-1.0, 0.0, 1.0], np.float32),) * N_FEATURES
SILOS = (Silo("ash"), Silo("birch"), Silo("cedar"))


class HalfNoise(NoisyAnswers):
    """Charges what is claimed and adds half the noise."""

    def answer(
        self, query: bytes, parts: Sequence[NoisyPart], *, silos: tuple[Silo, ...], honest: int
    ) -> list[Counts]:
        """Return counts with half the noise."""
        half = [(replace(cost, epsilon=2 * cost.epsilon), counts) for cost, counts in parts]
        return super().answer(query, half, silos=silos, honest=honest)


class OneCount(NoisyAnswers):
    """Takes a row to change one count of a query."""

    def answer(
        self, query: bytes, parts: Sequence[NoisyPart], *, silos: tuple[Silo, ...], honest: int
    ) -> list[Counts]:
        """Return counts with noise for a sensitivity of 1."""
        narrow = [(replace(cost, sensitivity=1), counts) for cost, counts in parts]
        return super().answer(query, narrow, silos=silos, honest=honest)


FAULTS: dict[str, type[NoisyAnswers]] = {"half-noise": HalfNoise, "sensitivity": OneCount}
CAUGHT = {
    "half-noise": {
        "FedGA: row count",
        "tree: class counts of the leaves",
        "tree: class counts and histograms of the root",
        "tree: bin edges, first stage",
        "tree: one stage, root and leaves",
        "tree: root, sum of three silos' parts",
    },
    "sensitivity": {
        "tree: class counts and histograms of the root",
        "tree: class counts and every cut of the root",
        "tree: bin edges, first stage",
        "tree: root, sum of three silos' parts",
    },
}
"""Mechanisms whose noise a fault breaks so that 2,000 runs show it every time."""


@dataclass(frozen=True, slots=True)
class Game:
    """One mechanism and the adversary's knowledge of it.

    Parameters
    ----------
    claimed : float
        Epsilon that the accountant charges.
    answer : callable
        Whether the row is there, and the budget's ledger, to what the adversary sees.
    rates : ndarray of shape (n_values,), float64
        Epsilon over sensitivity of each value's noise.
    exact : tuple of ndarray
        The values without noise: without the row, and with it.
    """

    name: str
    claimed: float
    answer: Callable[[bool], NDArray[np.int64]]
    rates: NDArray[np.float64]
    exact: tuple[NDArray[np.int64], NDArray[np.int64]]

    def score(self, seen: NDArray[np.int64]) -> float:
        """Return the logarithm of the likelihood ratio, with the row over without it."""
        without, with_row = (np.abs(seen - exact) for exact in self.exact)
        return float(self.rates @ (without - with_row))


def table(present: bool, silo: int = 0) -> Dataset:
    """Return a silo's rows; the first silo's last row is the one at stake."""
    rng = np.random.default_rng(silo)
    X = rng.normal(size=(30, N_FEATURES)).astype(np.float32)
    y = rng.integers(0, 2, 30).astype(np.float64)
    rows = np.arange(30 if present or silo else 29)
    return Dataset(SCHEMA, X, y).take(rows)


Answering = Callable[[Dataset, Silo], NoisyAnswers]
"""A silo's table to its answers, under a fresh key."""


def answering(kind: type[NoisyAnswers], entropy: Entropy = os.urandom) -> Answering:
    """Return how silos answer whose mechanism is of a kind."""

    def made(data: Dataset, silo: Silo) -> NoisyAnswers:
        return kind(LocalVault(entropy), BudgetLedger(math.inf), start_of(data, silo))

    return made


def start_of(data: Dataset, silo: Silo) -> SiloStart:
    """Return what a silo's half starts from."""
    return SiloStart(JobParameters("audit", DPTree(1.0)), "audit", 1, silo, SILOS, SCHEMA, data)


def tree_game(name: str, parameters: DPTree, asked: Sequence[Query], answers: Answering) -> Game:
    """Return the game of a tree's queries, asked one after the other of one silo or of three.

    With ``secure`` the adversary sees the sum of all silos' answers.
    """
    n_silos = len(SILOS) if parameters.secure else 1
    queries = Queries(parameters, SCHEMA, n_silos)
    costs = [cost for query in asked for cost in queries.spendings(query)]
    plain = Queries(replace(parameters, epsilon=math.inf), SCHEMA, n_silos)

    def summed(of: Queries, made: Answering, present: bool) -> NDArray[np.int64]:
        total = np.zeros(sum(cost.values for cost in costs), dtype=np.int64)
        for number, silo in enumerate(SILOS[:n_silos]):
            data = table(present, number)
            counter = Counter(of, made(data, silo), start_of(data, silo))
            together = SILOS if parameters.secure else ()
            total += np.concatenate([
                counter.cells(query, together)
                if isinstance(query, EdgeSearch)
                else counter.counts(query, together)
                for query in asked
            ])  # fmt: skip
        return total

    rates = [np.full(cost.values, cost.epsilon / cost.sensitivity) for cost in costs]
    without, with_row = (
        summed(plain, answering(NoisyAnswers), present) for present in (False, True)
    )
    return Game(
        name,
        math.fsum(cost.epsilon for cost in costs),
        lambda present: summed(queries, answers, present),
        np.concatenate(rates),
        (without, with_row),
    )


def rows_game(epsilon: float, answers: Answering) -> Game:
    """Return the game of FedGA's row count."""

    def answer(present: bool) -> NDArray[np.int64]:
        data = table(present)
        return np.array([noisy_row_count(answers(data, SILOS[0]), data.n_samples, epsilon)])

    exact = tuple(np.array([table(present).n_samples]) for present in (False, True))
    return Game("FedGA: row count", epsilon, answer, np.array([epsilon]), (exact[0], exact[1]))


def games(answers: Answering) -> list[Game]:
    """Return what is audited."""
    one = DPTree(2.0, depth=1, bins=4, secure=False)
    root = open_root(SCHEMA, EDGES)
    left = np.arange(5) < 2
    leaves = extend(root, {0: (0, left)})
    whole = np.zeros(1, dtype=np.uint32)
    stages: list[Query] = [EdgeSearch(stage, (whole,) * N_FEATURES) for stage in range(1)]
    candidates = replace(one, query="candidates")
    strong = replace(one, epsilon=6.0)
    edges = replace(strong, binning_share=0.9)
    return [
        rows_game(FedGA().epsilon_rows, answers),
        rows_game(0.3, answers),
        tree_game("tree: class counts of the leaves", strong, [leaves], answers),
        tree_game("tree: class counts and histograms of the root", strong, [root], answers),
        tree_game("tree: class counts and every cut of the root", candidates, [root], answers),
        tree_game("tree: bin edges, first stage", edges, stages, answers),
        tree_game("tree: one stage, root and leaves", one, [*stages, root, leaves], answers),
        tree_game(
            "tree: root, sum of three silos' parts", replace(strong, secure=True), [root], answers
        ),
    ]  # fmt: skip


def bound(trues: int, falses: int, n: int, confidence: float = CONFIDENCE) -> float:
    """Return a lower bound of epsilon from true and false alarms of ``n`` runs each.

    Clopper and Pearson's, each at half of what may go wrong.
    """
    from scipy.stats import beta

    wrong = (1.0 - confidence) / 2.0
    if not trues:
        return 0.0
    least = float(beta.ppf(wrong, trues, n - trues + 1))
    most = float(beta.ppf(1.0 - wrong, falses + 1, n - falses)) if falses < n else 1.0
    return max(0.0, math.log(least / most))


def audit(game: Game, runs: int) -> float:
    """Return a lower bound of epsilon, at :data:`CONFIDENCE`, from ``runs`` on either table.

    An event that is likelier with the row, or without it: the better direction is chosen with the
    threshold, on the first half of the runs.
    """
    scores = [
        np.array([game.score(game.answer(present)) for _ in range(runs)])
        for present in (False, True)
    ]
    half = runs // 2
    choices = []
    for sign, (null, other) in ((1.0, scores), (-1.0, scores[::-1])):
        steps = np.unique(sign * np.concatenate(scores).round(9))
        for threshold in steps[:: max(1, len(steps) // 500)]:
            said = [int((sign * own[:half] >= threshold - 1e-9).sum()) for own in (other, null)]
            choices.append((bound(said[0], said[1], half), sign, threshold))
    _, sign, threshold = max(choices)
    null, other = scores if sign > 0 else scores[::-1]
    trues, falses = (int((sign * own[half:] >= threshold - 1e-9).sum()) for own in (other, null))
    return bound(trues, falses, runs - half)


def main() -> None:
    """Audit every mechanism and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=20_000, help="on either table")
    parser.add_argument("--quick", action="store_true", help="2,000 runs")
    parser.add_argument("--break", dest="fault", choices=sorted(FAULTS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    runs = 2_000 if arguments.quick else arguments.runs
    kind = FAULTS.get(arguments.fault, NoisyAnswers)
    found = []
    print("| mechanism | epsilon claimed | lower bound, 99 % | |\n|---|---|---|---|")
    for game in games(answering(kind)):
        least = audit(game, runs)
        verdict = "holds" if least <= game.claimed else "**violated**"
        found.append({"mechanism": game.name, "claimed": game.claimed, "at_least": least})
        print(f"| {game.name} | {game.claimed:.3g} | {least:.3g} | {verdict} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(not as_expected(found, arguments.fault))


def as_expected(found: Sequence[Mapping[str, Any]], fault: str | None) -> bool:
    """Tell whether all are caught that a fault breaks, and without a fault none is."""
    caught = {row["mechanism"] for row in found if row["at_least"] > row["claimed"]}
    return caught >= CAUGHT[fault] if fault else not caught


if __name__ == "__main__":
    main()
