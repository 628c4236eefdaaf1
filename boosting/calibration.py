"""How fast this machine is: about a second of measuring, for forecasts of seconds."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from functools import cache

import numpy as np

from hedgerow.boosting.work import Work
from hedgerow.crypto.ciphers.roles import Scheme
from hedgerow.crypto.masking.masks import masked
from hedgerow.crypto.threads import usable_cores
from hedgerow.crypto.vault.interface import CipherVault
from hedgerow.crypto.vault.local_vault import LocalVault

_REPEATS, _PAUSE_SECONDS = 4, 0.05
_LEAST_PASSES, _MOST_PASSES = 12, 40
_NEAR_BEST = 0.9
"""Share of the best pass that a pass on a quiet machine reaches; measured."""
_SESSION = "calibration"
_LINE = {"step": "ExchangeHistograms", "round": 7, "bytes": 12_345, "digest": "0" * 64}

_LINES_OF_EXCHANGE = 620
"""Lines of JSON that take the interpreter as long as one exchange; fitted."""


def _seconds(block: Callable[[], object], clock: Callable[[], float], repeats: int) -> float:
    """Return the shortest of several runs: what else the machine does is no part of it."""
    shortest = float("inf")
    for _ in range(repeats):
        began = clock()
        block()
        shortest = min(shortest, clock() - began)
    return max(shortest, 1e-9)


def machine_rates(
    n_threads: int = 1, clock: Callable[[], float] = time.thread_time
) -> dict[Work, float]:
    """Return the rates of this machine without ciphers.

    Parameters
    ----------
    n_threads : int
        That histograms are built by.
    clock : callable
        Seconds; of this thread's CPU time, so that a rate is that of a machine with room.
    """
    rng = np.random.default_rng(0)
    n_cells, n_words, n_bytes, n_lines = 1 << 16, 1 << 14, 1 << 18, 100
    bins, weights = rng.integers(0, 1024, n_cells), rng.random(n_cells)
    words, seeds, blob = np.zeros(n_words, np.uint64), [bytes(32)], bytes(n_bytes)
    size = 64  # above it BLAS may use more threads than this one
    matrix = rng.random((size, size), np.float32)

    def multiply() -> None:
        for _ in range(20):
            _ = matrix @ matrix

    def lines() -> None:
        for _ in range(n_lines):
            hashlib.sha256(json.dumps(json.loads(json.dumps(_LINE))).encode()).digest()

    blocks: dict[Work, tuple[float, Callable[[], object]]] = {
        Work.EXCHANGE: (n_lines / _LINES_OF_EXCHANGE, lines),
        Work.BYTE: (n_bytes, lambda: hashlib.sha256(bytes(bytearray(blob))).digest()),
        Work.CELL: (n_threads * n_cells, lambda: np.bincount(bins, weights, 1024)),
        Work.MULTIPLY: (n_threads * 20 * size**3, multiply),
        Work.MASK: (n_words, lambda: masked(words, 64, seeds, ())),
    }
    # Another program on the core's other half comes and goes, and halves the rates while it is
    # there: passes are apart, and there are more until half of them were as fast as the best.
    passes: list[dict[Work, float]] = []
    while len(passes) < _LEAST_PASSES or (len(passes) < _MOST_PASSES and _disturbed(passes)):
        passes.append(
            {kind: n / _seconds(block, clock, _REPEATS) for kind, (n, block) in blocks.items()}
        )
        time.sleep(_PAUSE_SECONDS)
    return {kind: max(one[kind] for one in passes) for kind in blocks}


def _disturbed(passes: list[dict[Work, float]]) -> bool:
    """Whether most passes were slower than the fastest of them."""
    paces = [one[Work.EXCHANGE] for one in passes]
    return 2 * sum(pace > _NEAR_BEST * max(paces) for pace in paces) < len(paces)


def cipher_rates(
    vault: CipherVault, clock: Callable[[], float] = time.perf_counter
) -> dict[Work, float]:
    """Return the rates of a silo's vault, over the network between.

    Raises
    ------
    FederationError, Refusal
        The vault does not answer.
    """
    try:
        return {
            **_scheme_rates(vault, "paillier", 128, clock),
            **_scheme_rates(vault, "elgamal", 1024, clock),
            Work.POINT: _point_rate(vault, clock),
        }
    finally:
        vault.forget_session(_SESSION)


def _scheme_rates(
    vault: CipherVault, scheme: Scheme, n_values: int, clock: Callable[[], float]
) -> dict[Work, float]:
    session = f"{_SESSION}/{scheme}"
    key = vault.create_cipher_key(session, 2048, scheme)
    rows = vault.encrypt_integers(session, range(n_values))
    few, index = rows[:32], np.tile(np.arange(n_values, dtype=np.uint32), 8)
    start = np.array([0, index.size], np.int64)

    def rate(count: int, block: Callable[[], object]) -> float:
        return count / _seconds(block, clock, 2)

    found = {
        "ENCRYPT": rate(n_values, lambda: vault.encrypt_integers(session, range(n_values))),
        "ADD": rate(index.size, lambda: vault.sum_selected(key, rows.data, index, start)),
    }
    if scheme == "paillier":  # ElGamal's first decryption makes a table, which takes seconds
        found["DECRYPT"] = rate(len(few), lambda: vault.decrypt_integers(session, few.data))
    return {Work[f"{scheme.upper()}_{name}"]: one for name, one in found.items()}


def _point_rate(vault: CipherVault, clock: Callable[[], float]) -> float:
    ids = [str(k).encode() for k in range(500)]
    return len(ids) / _seconds(lambda: vault.blind_identifiers(_SESSION, ids), clock, 2)


@cache
def rates_here() -> dict[Work, float]:
    """Return the rates of this machine, measured once in a process."""
    ciphers = cipher_rates(LocalVault(), time.process_time)
    found = {kind: rate * usable_cores() for kind, rate in ciphers.items()}
    return {**machine_rates(), **found, Work.ROUND_TRIP: 1000.0}
