"""What the active party's view shows of a passive party's bins, with and without each guard.

``python -m benchmarks.vertical_guards [--quick] [--data DIR] [--json FILE]``.

*Placed rows*: an honest but curious active party subtracts every two sums of a node from each other
and looks the difference up among the gradients of the node's rows. Where it is that of one row,
that row alone lies between two divisions, of one column or of two that are much alike: ``placed``
is the share of rows that it finds so in any tree, ``precision`` how many of them are indeed alone
in a bin of their node. ``min_bin_rows`` is the guard; ``test`` is what it costs, the metric on rows
held out.

*Rows of its choice*: an active party that lies encrypts 2^k for row k and reads one sum. ``rows``
is of how many rows it learns which side they are on: with the layout of 18 classes of its own (what
it could ask for before passive parties derived the layout from the job), with the job's layout but
an answer that is not filled up, and with both guards.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks import add_data
from benchmarks._vertical_parties import datasets, in_process, read_tables
from hedgerow.boosting.allowances import PartyLimits
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.binning import bin_features
from hedgerow.boosting.engine.cuts import local_cuts
from hedgerow.boosting.job import Booster
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.strategies.secureboost.active_tree import ActiveTree
from hedgerow.boosting.strategies.secureboost.choice import PartyGrower
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.paillier_keys import generate_private_key
from hedgerow.crypto.ciphers.paillier_roles import PaillierOwner, PaillierPeer

Row = dict[str, object]
LEAST = (1, 2, 5, 10, 20)
SETS = {
    "fate_breast_hetero": ("label", Task.BINARY),
    "fate_default_credit_hetero": ("label", Task.BINARY),
    "fate_motor_hetero": ("label", Task.REGRESSION),
}
MOST_SUMS = 400
"""Sums of a node that are compared two by two."""


class Curious:
    """An active party that looks at every node's sums for single rows."""

    def __init__(self, host: Dataset, max_bin: int) -> None:
        cuts = local_cuts(host, max_bin)
        self._bins = bin_features(host.X, cuts, 1).by_feature
        self.placed = np.zeros(host.n_samples, np.bool_)
        self.right = np.zeros(host.n_samples, np.bool_)
        self._tree: ActiveTree | None = None

    def watching(self) -> Any:
        """Return a context in which nodes are looked at."""
        curious, histograms, keep = self, ActiveTree._histograms, PartyGrower._keep

        def seen(tree: ActiveTree, passive: bool) -> Any:
            curious._tree = tree
            return histograms(tree, passive)

        def kept(grower: PartyGrower, node: int, histogram: NDArray[np.int64]) -> None:
            masks = grower.allowed.get(node, ())
            if masks:
                own = grower.width - sum(len(mask) for mask in masks)
                curious.look(node, histogram[own:][np.concatenate(masks)])
            keep(grower, node, histogram)

        return patch.multiple(ActiveTree, _histograms=seen), patch.multiple(PartyGrower, _keep=kept)

    def look(self, node: int, sums: NDArray[np.int64]) -> None:
        """Find rows that are the difference of two sums."""
        assert self._tree is not None
        rows = self._tree.partition.rows(node)
        rows = rows[rows < len(self.placed)]  # evaluation rows have no gradients
        own = self._tree._gradients.searched[rows]
        key = own[:, 0] * (1 << 31) + own[:, 1]
        total = own.sum(axis=0)
        known = np.unique(np.concatenate([sums, [np.zeros_like(total), total]]), axis=0)[:MOST_SUMS]
        values, first, times = np.unique(key, return_index=True, return_counts=True)
        codes = known[:, 0] * (1 << 31) + known[:, 1]
        differences = (codes[:, None] - codes[None, :]).ravel()
        found = first[np.isin(values, differences) & (times == 1)]
        if not len(found):
            return
        alone = np.zeros(len(rows), np.bool_)
        for column in self._bins:
            here = column[rows]
            alone |= np.bincount(here)[here] == 1
        self.placed[rows[found]] = True
        self.right[rows[found[alone[found]]]] = True


def placed(data: Path, name: str, rounds: int, least: int) -> Iterator[Row]:
    """Return what one guard leaves of the placed rows, and what it costs."""
    label, task = SETS[name]
    tables = read_tables(data / f"{name}.parquet", label)
    parties = datasets(tables, label, task)
    tests = datasets(
        {k.removeprefix("test-"): v for k, v in tables.items() if k[:4] == "test"}, label, task
    )
    job = JobParameters(
        name="guards",
        parameters=SecureBoost(
            "guest", rounds=rounds, encryption="plain", allow_insecure=True, alignment="digest"
        ),
        task=task,
        booster=Booster(max_depth=5, max_bin=32),
    )  # fmt: skip
    curious = Curious(parties["host"], job.booster.max_bin)
    one, other = curious.watching()
    with one, other:
        phases, _, _ = in_process(job, parties, tests, limits=PartyLimits(least_bin_rows=least))
    n_placed = int(curious.placed.sum())
    who = f"min_bin_rows {least}"
    metric, score = next(iter(phases.scores["test"].items()))
    yield row(f"{name}_placed", who, n_placed / len(curious.placed))
    yield row(f"{name}_precision", who, int(curious.right.sum()) / max(n_placed, 1))
    yield row(f"{name}_test_{metric}", who, score)


def chosen(guard: str, key_bits: int = 2048, n: int = 1900) -> Row:
    """Return of how many rows of its choice a lying active party reads the side from one sum."""
    owner = PaillierOwner(generate_private_key(key_bits), Engine(workers=1))
    peer = PaillierPeer(owner.private_key.public_key, Engine(workers=1))
    layout = PairLayout.fit(n_rows=1 << 15, max_abs_grad=1, max_hess=0.25, fraction_bits=28)
    if guard == "none: 18 classes":
        layout = replace(layout, n_classes=18)
    filled = patch.object(PairLayout, "spare_bits", lambda *_: 0)
    rows = owner.encrypt_integers([1 << k for k in range(n)])
    held = peer.hold(layout, (rows,), np.zeros((n, 1), np.uint8), [1])
    inside = np.random.default_rng(0).random(n) < 0.5
    node = [np.flatnonzero(inside)]
    if guard == "layout and filling":
        (answer,) = held.answer(node, cumulative=True, missing=None, order=None)
    else:
        with filled:
            (answer,) = held.answer(node, cumulative=True, missing=None, order=None)
    (plaintext,) = owner.decrypt_integers(answer)
    shown = np.array([plaintext >> k & 1 for k in range(n)], np.bool_)
    wrong = np.flatnonzero(shown != inside)
    return row("rows_of_its_choice", guard, float(wrong[0]) if len(wrong) else float(n))


def row(metric: str, who: str, value: float) -> Row:
    """Return a line of the table."""
    return {"metric": metric, "who": who, "value": round(value, 4), "unit": ""}


def main() -> None:
    """Print a table, and JSON where asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    add_data(parser)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[Row] = []
    guards = ("none: 18 classes", "layout", "layout and filling")
    found: list[Iterator[Row]] = [map(chosen, guards)]
    for name in list(SETS)[: 1 if arguments.quick else None]:
        for least in LEAST[:: 3 if arguments.quick else 1]:
            found.append(placed(arguments.data, name, 6 if arguments.quick else 20, least))
    for line in chain(*found):
        print(f"{line['metric']:<44} {line['who']:<24} {line['value']!s:>9}", flush=True)
        rows.append(line)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
