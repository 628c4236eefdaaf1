"""Empirical epsilon: how well an adversary tells neighbouring tables apart by what silos send.

``python -m benchmarks.dp_audit [--runs N] [--quick] [--break half-noise|sensitivity|all-parts]
[--json FILE]``. The game: a silo's table has a row more, or has not; the adversary knows both
tables and all that differential privacy does not hide, sees one answer, and guesses. By the
likelihood ratio of the discrete Laplace distribution it orders answers; on one half of the runs it
picks the threshold that serves it best, on the other half it is measured. With true and false
alarms come Clopper-Pearson bounds, and from them a lower bound of epsilon that holds with 99 %: for
a mechanism with the epsilon that it claims it is above that in fewer than one of 100 audits. The
bound is below epsilon for want of runs, and where noise is spread over many counts, since then no
single event tells tables apart by the whole of epsilon.

What is audited is the silo's own code: :class:`Counter` of the private tree and the row count of
FedGA, with a fresh key for each run, through the accountant, which charges what is claimed. Where
it says *seen by a silo*, the adversary is one of the silos of a sum and subtracts what it added
itself. There each of many bins has a row at stake, and one answer is as many runs: their noise is
independent.

``--factors`` prints the exact epsilon of a query against silos that know their parts of its noise.

``--break`` audits a mechanism with a fault: half the noise, noise for one count where a row changes
several, or noise that is whole only with the parts of all silos. The exit code is 1 if a mechanism
of :data:`CAUGHT` is not caught then, and if a true one ever is.

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
from functools import cache
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
from hedgerow.boosting.sums.answers import Counts, NoisyPart, NoisyRelease
from hedgerow.crypto.masking.key_agreement import Entropy
from hedgerow.crypto.masking.noise import discrete_laplace_epsilon
from hedgerow.crypto.vault.local_vault import LocalVault

CONFIDENCE = 0.99
N_FEATURES = 3
SCHEMA = Schema(
    tuple(Feature(f"x{k}") for k in range(N_FEATURES)), "label", Task.BINARY, 2
)  # fmt: skip
EDGES = (np.array([-1.0, 0.0, 1.0], np.float32),) * N_FEATURES
SILOS = (Silo("ash"), Silo("birch"), Silo("cedar"))


class HalfNoise(NoisyRelease):
    """Charges what is claimed and adds half the noise."""

    def answer(
        self, query: bytes, parts: Sequence[NoisyPart], *, silos: tuple[Silo, ...], honest: int
    ) -> list[Counts]:
        """Return counts with half the noise."""
        half = [(replace(cost, epsilon=2 * cost.epsilon), counts) for cost, counts in parts]
        return super().answer(query, half, silos=silos, honest=honest)


class OneCount(NoisyRelease):
    """Takes a row to change one count of a query."""

    def answer(
        self, query: bytes, parts: Sequence[NoisyPart], *, silos: tuple[Silo, ...], honest: int
    ) -> list[Counts]:
        """Return counts with noise for a sensitivity of 1."""
        narrow = [(replace(cost, sensitivity=1), counts) for cost, counts in parts]
        return super().answer(query, narrow, silos=silos, honest=honest)


class AllParts(NoisyRelease):
    """Takes the parts of all silos of a sum to make up the noise: a silo of it sees less."""

    def answer(
        self, query: bytes, parts: Sequence[NoisyPart], *, silos: tuple[Silo, ...], honest: int
    ) -> list[Counts]:
        """Return counts with smaller parts of the noise."""
        return super().answer(query, parts, silos=silos, honest=max(honest, len(silos)))


FAULTS: dict[str, type[NoisyRelease]] = {
    "half-noise": HalfNoise,
    "sensitivity": OneCount,
    "all-parts": AllParts,
}
CAUGHT = {
    "half-noise": {
        "FedGA: row count",
        "tree: class counts of the leaves",
        "tree: class counts and histograms of the root",
        "tree: bin edges, first stage",
        "tree: one stage, root and leaves",
        "tree: root, sum of three silos' parts",
        "tree: bins of the root, three silos, seen by a silo",
        "tree: bins of the root, five silos, seen by a silo",
    },
    "sensitivity": {
        "tree: class counts and histograms of the root",
        "tree: class counts and every cut of the root",
        "tree: bin edges, first stage",
        "tree: root, sum of three silos' parts",
    },
    "all-parts": {
        "tree: bins of the root, three silos, seen by a silo",
        "tree: bins of the root, five silos, seen by a silo",
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
        Whether the row is there to what the adversary sees, of shape (runs, n_values).
    rates : ndarray of shape (n_values,), float64
        Epsilon over sensitivity of each value's noise.
    exact : tuple of ndarray
        The values without noise: without the row, and with it.
    shape : float
        Of the noise that the adversary reckons with: parts that it does not know, over those that
        would be the whole noise. Below 1 also tells runs with whole noise apart, by the same event.
    n_runs : int
        Runs in an answer.
    """

    name: str
    claimed: float
    answer: Callable[[bool], NDArray[np.int64]]
    rates: NDArray[np.float64]
    exact: tuple[NDArray[np.int64], NDArray[np.int64]]
    shape: float = 1.0
    n_runs: int = 1

    def scores(self, seen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return logarithms of the likelihood ratio by run, with the row over without it."""
        without, with_row = (np.abs(seen - exact) for exact in self.exact)
        if self.shape >= 1.0:
            return np.asarray((without - with_row) @ self.rates, np.float64)
        found = np.zeros(len(seen))
        for k, rate in enumerate(self.rates.tolist()):
            known = log_probabilities(rate, self.shape)
            far = len(known) - 1
            ratio = known[np.minimum(with_row[:, k], far)] - known[np.minimum(without[:, k], far)]
            found += ratio
        return found


@cache
def log_probabilities(rate: float, shape: float) -> NDArray[np.float64]:
    """Return logarithms of the probabilities of 0, 1, ... where parts of the noise are missing.

    From the characteristic function ``((1 - q)^2 / (1 - 2 q cos t + q^2))^r``, as far as rounding
    lets tell them.
    """
    q, n = math.exp(-rate), 1 << math.ceil(math.log2(80.0 / rate + 64.0))
    angles = 2.0 * np.pi * np.arange(n // 2 + 1) / n
    powers = ((1.0 - q) ** 2 / (1.0 - 2.0 * q * np.cos(angles) + q * q)) ** shape
    return np.asarray(np.log(np.fft.irfft(powers)[: math.ceil(20.0 / rate) + 2]), np.float64)


def table(present: bool, silo: int = 0) -> Dataset:
    """Return a silo's rows; the first silo's last row is the one at stake."""
    rng = np.random.default_rng(silo)
    X = rng.normal(size=(30, N_FEATURES)).astype(np.float32)
    y = rng.integers(0, 2, 30).astype(np.float64)
    rows = np.arange(30 if present or silo else 29)
    return Dataset(SCHEMA, X, y).take(rows)


Answering = Callable[[Dataset, Silo], NoisyRelease]
"""A silo's table to its answers, under a fresh key."""


def answering(kind: type[NoisyRelease], entropy: Entropy = os.urandom) -> Answering:
    """Return how silos answer whose mechanism is of a kind."""

    def made(data: Dataset, silo: Silo) -> NoisyRelease:
        return kind(LocalVault(entropy), BudgetLedger(math.inf), start_of(data, silo))

    return made


def start_of(data: Dataset, silo: Silo) -> SiloStart:
    """Return what a silo's half starts from."""
    return SiloStart(
        JobParameters("audit", DPTree(1.0)), "audit", 1, silo, SILOS, data.schema, data
    )


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
        summed(plain, answering(NoisyRelease), present) for present in (False, True)
    )
    return Game(
        name,
        math.fsum(cost.epsilon for cost in costs),
        lambda present: summed(queries, answers, present)[None, :],
        np.concatenate(rates),
        (without, with_row),
    )


def rows_game(epsilon: float, answers: Answering) -> Game:
    """Return the game of FedGA's row count."""

    def answer(present: bool) -> NDArray[np.int64]:
        data = table(present)
        return np.array([[noisy_row_count(answers(data, SILOS[0]), data.n_samples, epsilon)]])

    exact = tuple(np.array([table(present).n_samples]) for present in (False, True))
    return Game("FedGA: row count", epsilon, answer, np.array([epsilon]), (exact[0], exact[1]))


N_CODES = 1200
"""Bins of the table whose bins each have a row at stake."""

CODED = Schema(
    (Feature("code", tuple(str(code) for code in range(N_CODES))),), "label", Task.BINARY, 2
)


def member_game(name: str, epsilon: float, n_silos: int, answers: Answering) -> Game:
    """Return the game of a silo that takes its own part of a sum's noise off.

    One row of each bin is at stake, all in the same silo: a row is in one bin, so that by bins
    these are as many games of one mechanism.
    """
    silos = tuple(Silo(f"silo-{k}") for k in range(n_silos))
    parameters = DPTree(3.0 * epsilon, depth=1)
    queries = Queries(parameters, CODED, n_silos)
    root = open_root(CODED, (np.empty(0, np.float32),))
    (_, cost) = queries.spendings(root)
    codes = np.arange(N_CODES, dtype=np.float32)[:, None]

    def answered(data: Dataset, silo: Silo) -> NDArray[np.int64]:
        counter = Counter(queries, answers(data, silo), start_of(data, silo))
        return counter.counts(root, silos)[-cost.values :].reshape(-1, 2)[:N_CODES, 1]

    def answer(present: bool) -> NDArray[np.int64]:
        rows = codes if present else codes[:0]
        first = Dataset(CODED, rows, np.ones(len(rows)))
        others = Dataset(CODED, codes[:1], np.zeros(1))
        added = [answered(others if k else first, silo) for k, silo in enumerate(silos)]
        return (np.sum(added, axis=0) - added[-1])[:, None]

    exact = (np.zeros(1, np.int64), np.ones(1, np.int64))
    shape = (n_silos - 1) / n_silos
    return Game(name, cost.epsilon, answer, np.array([cost.epsilon]), exact, shape, N_CODES)


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
        *(
            member_game(f"tree: bins of the root, {count} silos, seen by a silo", *told, answers)
            for count, *told in (("three", 0.1, 3), ("five", 0.3, 5))
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

    Sixty times as many where an answer has many runs: they cost little.

    An event that is likelier with the row, or without it: the better direction is chosen with the
    threshold, on the first half of the runs.
    """
    answers = runs if game.n_runs == 1 else 60 * runs // game.n_runs
    scores = [
        np.concatenate([game.scores(game.answer(present)) for _ in range(answers)])
        for present in (False, True)
    ]
    runs = len(scores[0])
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


def factors() -> list[dict[str, Any]]:
    """Return the epsilon of a query against silos that know their parts, exactly."""
    return [
        {"silos": n, "honest": honest, "known": known, "stated": stated, "epsilon": against}
        for known, spare in ((1, 0), (1, 1), (2, 1))
        for n in (3, 5, 10, 20)
        for stated in (1.0, 0.1, 0.01)
        for honest in (n - spare,)
        for against in (discrete_laplace_epsilon(stated, parts=n - known, honest=honest),)
    ]


def main() -> None:
    """Audit every mechanism and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=20_000, help="on either table")
    parser.add_argument("--quick", action="store_true", help="2,000 runs")
    parser.add_argument("--break", dest="fault", choices=sorted(FAULTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--factors", action="store_true", help="exact epsilon against silos")
    arguments = parser.parse_args()
    if arguments.factors:
        print(json.dumps(factors()))
        if arguments.json:
            arguments.json.write_text(json.dumps(factors(), indent=1) + "\n")
        return
    runs = 2_000 if arguments.quick else arguments.runs
    kind = FAULTS.get(arguments.fault, NoisyRelease)
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
