"""What a vertical job is expected to move, by formula."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from boosting.parcels import PASS_PIECES, PIECE_BYTES, size_class
from boosting.ports import Call, Forecast, Silo

if TYPE_CHECKING:
    from boosting.dataset import Schema
    from boosting.job import JobParameters
    from boosting.strategies.secureboost import SecureBoost

PAIR_BITS = 54
"""Fraction bits and signs of a pair at the default precision, without the logarithm of the rows."""
ELGAMAL_ROW_BYTES = 96
BOX_BYTES = 288
PASS_BYTES = PASS_PIECES * PIECE_BYTES


def forecast(
    strategy: SecureBoost, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
) -> Forecast:
    """Return bytes of a job whose trees are full, for a silo with as many columns as ``schema``.

    Notes
    -----
    Rows up from the active party: n · C a tree and ciphertext part, C = key_bits / 4 bytes. Answers
    of a passive party: 2^(D-1) nodes · ⌈candidates / slots⌉ · C, one child a pair. Row bitmaps:
    n / 8 a level, each way.
    """
    n_parties = max(len(n_samples), 2)
    n_rows = max(min(n_samples.values(), default=1), 1)
    n_outputs = max(schema.n_outputs, 1)
    trees = 1 if strategy.multi_output else n_outputs
    classes = n_outputs if strategy.multi_output else 1
    depth = strategy.host_depth if strategy.mode == "layered" else job.booster.max_depth or 6
    share = 1 / n_parties if strategy.mode == "mix" else 1.0
    rounds = strategy.rounds
    shared = max(rounds - strategy.complete_secure, 0) * trees * share
    sampled = size_class(max(int(n_rows * _kept(strategy, job)), 1))
    row, slots, parts = _sizes(strategy, n_rows, classes)
    gradients = sampled * row * parts
    candidates = schema.n_features * max(job.booster.max_bin - 1, 1)
    answers = parts * row * 2 ** max(depth - 1, 0) * math.ceil(candidates / slots)
    bitmaps = depth * size_class(math.ceil(n_rows / 8))
    boxes = BOX_BYTES * (n_parties - 1)
    ids = 2 * 32 * n_rows if strategy.alignment == "psi" else BOX_BYTES
    exchanges = shared * (1 + 3 * depth) + rounds

    def step(messages: float, up: float, down: float) -> tuple[int, int, int]:
        return math.ceil(messages), math.ceil(up), math.ceil(down)

    n_others = n_parties - 1
    active = bool(schema.label)
    rows_up, rows_down = (gradients, 0) if active else (0, gradients)
    sums_up, sums_down = (0, answers * n_others) if active else (answers, 0)
    return Forecast(
        rounds=rounds,
        steps={
            Call.KEYS.value: step(1, 3000, 3000 * n_others),
            Call.IDENTIFIERS.value: step(3, ids, ids),
            Call.GRADIENTS.value: step(
                shared * math.ceil(gradients / PASS_BYTES),
                shared * (rows_up + boxes),
                shared * (rows_down + boxes),
            ),
            Call.HISTOGRAMS.value: step(
                shared * depth * math.ceil(answers / depth / PASS_BYTES),
                shared * sums_up,
                shared * sums_down,
            ),
            Call.SPLITS.value: step(
                2 * shared * depth,
                shared * (bitmaps + depth * boxes) * n_others,
                shared * (bitmaps + depth * boxes) * n_others,
            ),
            Call.SCORES.value: step(rounds, rounds * boxes, rounds * boxes),
        },
        reveals=strategy.reveals,
        notes=(
            f"about {exchanges:.0f} exchanges between {n_parties} parties, larger ones in passes",
            "a bound: full trees, and all sums of every node; small nodes need fewer",
            "as many columns at each passive party as in this silo's table",
        ),
        cpu_class="minutes" if shared * n_rows > 1e6 else "seconds",
    )


def _kept(strategy: SecureBoost, job: JobParameters) -> float:
    if strategy.sampling == "goss":
        return strategy.top_rate + strategy.other_rate
    if strategy.sampling in ("uniform", "mvs"):
        return strategy.sampling_rate
    return job.booster.subsample


def _sizes(strategy: SecureBoost, n_rows: int, classes: int) -> tuple[int, int, int]:
    """Return bytes of a ciphertext, bins in one of an answer, and ciphertexts a row."""
    if strategy.encryption == "elgamal":
        return ELGAMAL_ROW_BYTES, 1, classes
    if strategy.encryption == "plain":
        return 16 * classes, 1, 1
    pair = PAIR_BITS + 2 * math.ceil(math.log2(n_rows + 1)) + 1
    room = (strategy.key_bits - 2) // pair
    parts = math.ceil(classes / room)
    return strategy.key_bits // 4, max(room // min(classes, room), 1), parts
