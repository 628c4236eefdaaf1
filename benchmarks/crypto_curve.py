"""Rates of private set intersection and EC-ElGamal, per core.

``python -m benchmarks.crypto_curve [--quick] [--all-cores] [--json FILE]``; `benchmarks.crypto`
joins the rows with Paillier's and the peers'. Times are CPU seconds of one worker, the median of
several runs; of all cores they are seconds by the clock.

* ``psi_elements``: hash an id to the curve and multiply it by a secret;
* ``elgamal_encrypt``: (g, h) rows, 16-bit values;
* ``elgamal_load``: rows decoded and validated;
* ``elgamal_histogram_adds``: (g, h) rows added into bins, three points each, one by one;
* ``elgamal_histogram_adds_joint``: rows times features over the time of a whole histogram,
  with the plan, joint cells, derived bins, and re-randomised, encoded responses;
* ``elgamal_decrypt``: (g, h) bins of such a histogram, the two logarithms included;
* ``elgamal_logarithms_30``: values spread evenly over ±2^30, decryption included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hedgerow.crypto.arithmetic.curve25519 import hash_uniform
from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
from hedgerow.crypto.ciphers.bin_sums import plan_bin_sums
from hedgerow.crypto.ciphers.elgamal import (
    ElGamalDecryption,
    ElGamalOperations,
    ValueRange,
    generate_private_key,
    sum_bins,
)
from hedgerow.crypto.threads import usable_cores
from hedgerow.crypto.vault.blinding import DST

Row = dict[str, str | float]


def _rate(count: int, run: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    seconds = []
    for _ in range(repeats):
        start = clock()
        run()
        seconds.append(clock() - start)
    return count / statistics.median(seconds)


def _kernel_rows(name: str, who: str, quick: bool, workers: int = 1) -> list[Row]:
    kernel = Engine(name, workers).curve()  # type: ignore[arg-type]
    clock, unit, suffix = time.process_time, "1/s/core", ""
    if workers > 1:
        clock, unit, suffix = time.perf_counter, "1/s", "_all_cores"
    slow, repeats = name == "gmpy2", 3 if quick else 7
    rng = np.random.default_rng(7)
    out: list[Row] = []

    def report(metric: str, count: int, run: Callable[[], object], runs: int = repeats) -> None:
        value = _rate(count, run, runs, clock)
        out.append({"metric": metric + suffix, "who": who, "value": round(value), "unit": unit})

    ids = [b"person-%09d" % i for i in range(2_000 if slow else 40_000)]
    secret = os.urandom(32)
    report(
        "psi_elements",
        len(ids),
        lambda: kernel.multiply(kernel.map_to_curve(hash_uniform(ids, DST, b"bench")), secret),
    )

    n = 100 if slow else 4_000 if quick else 24_000
    n_features, n_bins = (2, 8) if slow else (20, 32)
    key = generate_private_key()
    value_range = ValueRange(16, n)
    public = ElGamalOperations(key.public_key(), value_range, kernel)
    g = rng.integers(-(1 << 16), 1 << 16, n)
    h = rng.integers(0, 1 << 16, n)
    bins = rng.integers(0, n_bins, (n, n_features)).astype(np.uint8)
    report("elgamal_encrypt", n, lambda: public.encrypt(g, h))
    sent = public.encrypt(g, h)
    report("elgamal_load", n, lambda: public.load(sent))
    rows = public.load(sent)
    plain = plan_bin_sums(bins, n_bins, joint=False, derive=False)
    report("elgamal_histogram_adds", n * n_features, lambda: sum_bins(rows, plain))
    report(
        "elgamal_histogram_adds_joint",
        n * n_features,
        lambda: public.histogram(rows, bins, n_bins),
    )
    sums = public.histogram(rows, bins, n_bins)
    holder = ElGamalDecryption(key, value_range, kernel)
    report("elgamal_decrypt", len(sums) // 96, lambda: holder.decrypt(sums))
    if not slow:
        wide = ValueRange(29, 2)
        even = rng.integers(-(1 << 30), 1 << 30, 500 if quick else 2_000)
        scalars = os.urandom(32 * len(even))
        masker = kernel.masker(*(public.public_key.p1, public.public_key.p2))
        ciphertexts = masker.encrypt(scalars, even, even[::-1].copy())
        holder = ElGamalDecryption(key, wide, kernel)
        report("elgamal_logarithms_30", 2 * len(even), lambda: holder.decrypt(ciphertexts))
    return out


def rows(quick: bool, all_cores: bool = False) -> list[Row]:
    """Measure every kernel of this machine; ``portable`` stands in where there is no IFMA."""
    names = {
        "ifma": "native", "avx2": "native-avx2", "portable": "native-portable", "gmpy2": "python"
    }  # fmt: skip
    kernels = available_kernels()
    out = []
    for kernel in kernels:
        who = "native" if kernel == kernels[0] != "gmpy2" else names[kernel]
        out += _kernel_rows(kernel, who, quick)
        if all_cores and usable_cores() > 1:
            out += _kernel_rows(kernel, who, quick, usable_cores())
    return out


def main() -> None:
    """Print the rows as a table, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--all-cores", action="store_true", help="also rates with all cores")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    measured = rows(arguments.quick, arguments.all_cores)
    for row in measured:
        print(f"{row['metric']:<32}{row['who']:<18}{row['value']:>14,} {row['unit']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
