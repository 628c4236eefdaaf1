"""What the crypto process costs beside the same vault within the caller, and how many cores work.

``python -m benchmarks.crypto_service [--quick] [--json FILE]``

A tree's ciphers go through the real process over mTLS on loopback, 2048-bit Paillier and
EC-ElGamal: gradients encrypted (active party), rows taken in and one node's bins summed up
(passive party), answers read. ``who`` is ``remote`` or ``local``.

* ``*_seconds``: by the clock;
* ``*_cpu_seconds``: of both processes, transport and TLS included;
* ``*_cores``: CPU seconds of the crypto process over seconds by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.roles import Scheme
from hedgerow.crypto.vault.interface import CipherVault
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.identity.peers import channel_credentials
from hedgerow.services.rpc.channel import dial
from hedgerow.services.rpc.crypto import RemoteVault
from hedgerow.services.rpc.metering import Metrics

Row = dict[str, str | float]
N_FEATURES, N_BINS = 20, 32


@contextmanager
def crypto_process() -> Iterator[tuple[RemoteVault, psutil.Process]]:
    """Give the remote vault of a process that ends with the block."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = throwaway(folder / "pki", ["ash"], time.time())
        ready = folder / "ready"
        settings = {
            "listen": "127.0.0.1:0",
            "metrics": "",
            "identity": str(folder / "pki/crypto/ash"),
            "silo": "ash",
            "state": str(folder / "state"),
            "log_level": "error",
            "ready_file": str(ready),
        }
        toml = folder / "crypto.toml"
        toml.write_text("".join(f"{key} = {json.dumps(v)}\n" for key, v in settings.items()))
        command = [sys.executable, "-m", "hedgerow.crypto", "--config", str(toml)]
        with subprocess.Popen(command) as process:
            while not ready.exists() or not ready.read_text():
                time.sleep(0.05)
            address = f"127.0.0.1:{json.loads(ready.read_text())['port']}"
            channel = dial(address, channel_credentials(paths["silo/ash"]), Metrics())
            yield RemoteVault(lambda: channel, address), psutil.Process(process.pid)
            process.terminate()


def measured(
    vault: CipherVault, who: str, scheme: Scheme, n_rows: int, server: psutil.Process | None
) -> Iterator[Row]:
    """Yield the rows of one tree's ciphers."""
    rng = np.random.default_rng(0)
    bits = 32 if scheme == "paillier" else 16
    layout = PairLayout.fit(n_rows=n_rows, max_abs_grad=1, max_hess=1, fraction_bits=bits)
    grad, hess = rng.uniform(-1, 1, (n_rows, 1)), rng.random((n_rows, 1))
    bins = rng.integers(0, N_BINS, (n_rows, N_FEATURES)).astype(np.uint8)
    nodes = [np.flatnonzero(rng.random(n_rows) < 0.4)]
    n_sums = N_FEATURES * N_BINS
    key = vault.create_cipher_key(scheme, 2048, scheme)
    vault.encrypt_gradients(scheme, layout, grad[:64], hess[:64])  # tables are made once
    found: dict[str, object] = {}

    def spent() -> tuple[float, float, float]:
        serving = 0.0 if server is None else sum(server.cpu_times()[:2])
        return time.perf_counter(), time.process_time(), serving

    def encrypt() -> None:
        found["rows"] = vault.encrypt_gradients(scheme, layout, grad, hess)

    def hold() -> None:
        vault.hold_rows(scheme, key, layout, found["rows"], bins, [N_BINS] * N_FEATURES)  # type: ignore[arg-type]

    def sum_up() -> None:
        found["answer"] = vault.sum_bins(scheme, nodes, cumulative=True)

    def read() -> None:
        vault.decrypt_histograms(scheme, layout, found["answer"], n_sums)  # type: ignore[arg-type]

    steps: dict[str, Callable[[], None]] = {
        "encrypt": encrypt,
        "hold": hold,
        "sum": sum_up,
        "read": read,
    }
    for name, step in steps.items():
        before = spent()
        step()
        clock, own, serving = (after - b for after, b in zip(spent(), before, strict=True))
        metric = f"{scheme}_{name}"
        yield {"metric": f"{metric}_seconds", "who": who, "value": clock, "unit": "s"}
        yield {"metric": f"{metric}_cpu_seconds", "who": who, "value": own + serving, "unit": "s"}
        cores = (own if server is None else serving) / clock
        yield {"metric": f"{metric}_cores", "who": who, "value": cores, "unit": "cores"}


def main() -> None:
    parser = argparse.ArgumentParser(description="The crypto process beside the vault within.")
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    n_rows = 4_000 if arguments.quick else 40_000
    rows: list[Row] = []
    print(f"{n_rows} rows, {N_FEATURES} features of {N_BINS} bins, {os.cpu_count()} cores")
    with crypto_process() as (remote, server):
        for scheme in ("paillier", "elgamal"):
            rows += measured(remote, "remote", scheme, n_rows, server)  # type: ignore[arg-type]
    for scheme in ("paillier", "elgamal"):
        rows += measured(LocalVault(), "local", scheme, n_rows, None)  # type: ignore[arg-type]
    values = {(row["metric"], row["who"]): row["value"] for row in rows}
    print(f"{'':<28}{'remote':>12}{'local':>12}")
    for metric in dict.fromkeys(row["metric"] for row in rows):
        print(f"{metric:<28}{values[metric, 'remote']:>12.3f}{values[metric, 'local']:>12.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
