"""Rates of the cryptographic engine beside the libraries that a user could take instead.

``python -m benchmarks.crypto [--quick] [--bits 2048] [--all-cores] [--json FILE]``

Rates are operations a second of CPU time of one core, medians of repeats; ``--all-cores`` adds
rates by the clock with every core at work (metrics that end in ``_all_cores``). Peers run in the
environment ``.venv-peers`` as subprocesses of the same run; one that is not there is named as
skipped. ``histogram_adds`` are additions of a row's ciphertext to a bin (rows × features), however
few multiplications they took; ``decrypted_bins`` are (g, h) sums read from compressed answers. The
tables at the end have a row a metric and a column an implementation.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import crypto_curve, secure_sums
from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
from hedgerow.crypto.ciphers.ciphertext_histogram import (
    CiphertextHistograms,
    pack_answer,
    read_answer,
)
from hedgerow.crypto.ciphers.obfuscators import (
    KeyHolderObfuscators,
    Obfuscators,
    UniformObfuscators,
)
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.paillier import KeyHolder
from hedgerow.crypto.ciphers.paillier_keys import PrivateKey, generate_private_key
from hedgerow.crypto.threads import usable_cores

Row = dict[str, object]

N_FEATURES, N_BINS = 8, 32
PEERS = (
    "phe",
    "fate-utils",
    "sf-heu-zpaillier",
    "sf-heu-ou",
    "sf-heu-elgamal",
    "openmined-psi",
)
PEERS_PYTHON = Path(__file__).resolve().parents[1] / ".venv-peers" / "bin" / "python"
# What is aimed at for 2048 bits a core: (native, python).
TARGETS: dict[str, tuple[float | None, float | None]] = {
    "paillier_encrypt_key_holder": (11_000, 1_800),
    "paillier_histogram_adds": (1_000_000, 200_000),
    "paillier_histogram_adds_joint": (1_800_000, None),
    "paillier_decrypted_bins": (35_000, 7_000),
    "psi_elements": (95_000, 25_000),
    "elgamal_histogram_adds": (8_000_000, None),
}


def rate(n: int, run: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    """Return n operations over the median time of ``run``."""
    times = []
    for _ in range(repeats):
        start = clock()
        run()
        times.append(clock() - start)
    return n / statistics.median(times)


def paillier_rates(
    key: PrivateKey, engine: Engine, scale: int, repeats: int
) -> Iterator[tuple[str, float]]:
    """Yield (metric, operations a second) of one kernel."""
    clock = time.process_time if engine.workers == 1 else time.perf_counter
    holder = KeyHolder(key, engine)
    public = holder.public
    rng = np.random.default_rng(0)
    n_rows = 400 * scale
    layout = PairLayout.fit(n_rows=1 << 20, max_abs_grad=1, max_hess=1, fraction_bits=24)
    plaintexts = layout.pack(
        *layout.quantise(rng.uniform(-1, 1, (n_rows, 1)), rng.random((n_rows, 1)))
    )
    sources: dict[str, Obfuscators] = {
        "paillier_encrypt_key_holder": KeyHolderObfuscators(key, engine),
        "paillier_rerandomise": UniformObfuscators(key.public_key, engine),
    }
    uniform = sources["paillier_rerandomise"]
    uniform.take(64)  # builds its table
    for metric, source in sources.items():
        work = plaintexts[: n_rows // 2]
        yield metric, rate(len(work), lambda w=work, s=source: public.encrypt(w, s), repeats, clock)
    rows = public.encrypt(plaintexts, sources["paillier_rerandomise"])
    # A node of realistic size: every ciphertext stands for several rows.
    n_node = 20_000 if scale > 1 else 4_000
    node = np.resize(rows, (n_node, rows.shape[1]))
    bins = rng.integers(0, N_BINS, (n_node, N_FEATURES)).astype(np.uint8)
    histograms = CiphertextHistograms(public, node, bins, [N_BINS] * N_FEATURES)
    for metric, joint in (
        ("paillier_histogram_adds", False),
        ("paillier_histogram_adds_joint", True),
    ):
        yield (
            metric,
            rate(bins.size, lambda j=joint: histograms.sums(joint=j), repeats, clock),
        )
    sums = histograms.sums()
    yield (
        "paillier_packed_bins",
        rate(len(sums), lambda: pack_answer(public, [sums], layout, uniform), repeats, clock),
    )
    answer = pack_answer(public, [sums] * 3, layout, uniform)
    many = np.resize(answer[:-1], (32 * scale, answer.shape[1]))
    n_bins = len(many) * layout.slots(key.public_key.bits)
    yield (
        "paillier_decrypted_bins",
        rate(n_bins, lambda: read_answer(holder, many, n_bins, layout), repeats, clock),
    )
    yield "paillier_decrypt", rate(len(many), lambda: holder.decrypt(many), repeats, clock)


def own_rows(bits: int, quick: bool, all_cores: bool) -> Iterator[Row]:
    """Yield rows of every kernel of this machine."""
    key = generate_private_key(bits)
    names = {
        "ifma": "native", "avx2": "native-avx2", "portable": "native-portable", "gmpy2": "python"
    }  # fmt: skip
    for kernel in available_kernels():
        scale = 1 if quick else (8 if kernel == "ifma" else 2)
        for workers in (1, usable_cores()) if all_cores else (1,):
            suffix = "" if workers == 1 else "_all_cores"
            unit = "1/s/core" if workers == 1 else "1/s"
            for metric, value in paillier_rates(
                key, Engine(kernel, workers), scale, 1 if quick else 3
            ):
                yield {
                    "metric": metric + suffix,
                    "who": names[kernel],
                    "value": round(value, 1),
                    "unit": unit,
                    "version": importlib.metadata.version("hedgerow"),
                }


def peer_rows(bits: int, quick: bool) -> Iterator[Row]:
    """Yield rows of the peers that are installed; say which are not."""
    script = Path(__file__).with_name("_crypto_peers.py")
    for who in PEERS:
        if not PEERS_PYTHON.exists():
            print(f"skipped {who}: no environment .venv-peers (make peers)")
            continue
        command = [str(PEERS_PYTHON), str(script), who, "--bits", str(bits)]
        done = subprocess.run(
            command + (["--quick"] if quick else []), capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
            print(f"skipped {who}: {reason}")
            continue
        yield from json.loads(done.stdout.splitlines()[-1])


def sister_rows(quick: bool, all_cores: bool) -> Iterator[Row]:
    """Yield rows of the modules beside this one."""
    for row in crypto_curve.rows(quick, all_cores):
        yield dict(row)
    yield from secure_sums.rows(quick)


def tables(rows: list[Row], bits: int) -> Iterator[str]:
    """Yield the lines of one table for a core and one for all cores."""
    for all_cores in (False, True):
        chosen = [
            row
            for row in rows
            if str(row["unit"]).startswith(("1/s", "values/s"))
            and str(row["metric"]).endswith("_all_cores") is all_cores
        ]
        if not chosen:
            continue
        whos = list(dict.fromkeys(str(row["who"]) for row in chosen))
        value = {(str(r["metric"]), str(r["who"])): float(str(r["value"])) for r in chosen}
        yield ""
        yield f"{'all cores /s' if all_cores else 'one core /s':<34}" + "".join(
            f"{who:>18}" for who in whos
        )
        for metric in dict.fromkeys(str(row["metric"]) for row in chosen):
            cells = [value.get((metric, who)) for who in whos]
            yield f"{metric:<34}" + "".join(
                f"{'-' if cell is None else f'{cell:,.0f}':>18}" for cell in cells
            )
        if all_cores or bits != 2048:
            continue
        yield ""
        for metric, aims in TARGETS.items():
            for who, aim in zip(("native", "python"), aims, strict=True):
                if aim is not None and (metric, who) in value:
                    share = value[metric, who] / aim
                    yield f"{metric} {who}: {share:.2f} of the {aim:,.0f} aimed at"


def main() -> None:
    parser = argparse.ArgumentParser(description="Rates of the cryptographic engine.")
    parser.add_argument("--quick", action="store_true", help="fewer operations, one repeat")
    parser.add_argument("--bits", type=int, default=2048, choices=(2048, 3072, 4096))
    parser.add_argument("--all-cores", action="store_true", help="also rates with all cores")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for source in (
        own_rows(arguments.bits, arguments.quick, arguments.all_cores),
        peer_rows(arguments.bits, arguments.quick),
        sister_rows(arguments.quick, arguments.all_cores),
    ):
        for row in source:
            rows.append(row)
            print(
                f"{row['metric']:<42} {row['who']:<18} {row['value']:>14,.1f} {row['unit']}",
                flush=True,
            )
    print(*tables(rows, arguments.bits), sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
