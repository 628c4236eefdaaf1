"""Secure sums: masks a core makes, and federations that sum with and without lost silos.

``python -m benchmarks.secure_sums [--quick] [--json FILE]``. Masks are CPU time, medians of
repeats. Federations run all their silos in this process through the real barrier, codecs and
certificates, without a network: ``sum_seconds`` is the wall time of a whole sum with all silos on
this machine's cores, where the interpreter's lock makes them queue; ``sum_silo_cpu`` is the slowest
silo's own CPU time and ``sum_coordinator_cpu`` that of its loop and workers, so that the two add up
to a sum's time, but for the network, where each silo has a machine. Bytes are of serialised frames.
Flower's mask generator is measured where its package is in ``.venv-peers``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.boosting.errors import JobStopped, QuorumLost
from hedgerow.boosting.exchange import ExchangeKey, Silo
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.groups import OpenedSets
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumParameters
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.crypto.masking import shamir
from hedgerow.crypto.masking.fixed_point import RINGS, pack, residue_dtype, unpack
from hedgerow.crypto.masking.keystream import apply_keystreams
from hedgerow.crypto.masking.masks import Residues
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.identity import authority
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.wire import codec_of
from tests.federation.memory import MemoryLink

Row = dict[str, object]
PEERS_PYTHON = Path(__file__).resolve().parent.parent / ".venv-peers/bin/python"
FLOWER = """
import sys, time
import numpy as np
from importlib.metadata import version
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
n, peers = int(sys.argv[1]), int(sys.argv[2])
total = np.zeros(n, dtype=np.int64)
start = time.process_time()
for peer in range(peers):
    total += pseudo_rand_gen(bytes([peer]) * 32, 1 << 32, [(n,)])[0]
print(time.process_time() - start, version("flwr"))
"""


def median_cpu(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def repack(residues: Residues, ring_bits: int) -> Residues:
    return unpack([pack(residues, ring_bits)], len(residues), ring_bits)


def row(metric: str, who: str, value: float, unit: str, **more: object) -> Row:
    return {"metric": metric, "who": who, "value": value, "unit": unit, **more}


def rows(quick: bool) -> list[Row]:
    """Return what one core does: masks, for ``benchmarks.crypto`` too, and shares."""
    n, peers = (100_000, 20) if quick else (1_000_000, 100)
    repeats = 5 if quick else 9
    values = np.zeros(n, dtype=np.uint64)
    keys = [bytes([k]) * 32 for k in range(peers)]

    def mask() -> None:
        apply_keystreams(values, keys[: peers // 2], keys[peers // 2 :])

    mask()
    seconds = median_cpu(mask, repeats)
    out = [
        row("mask_values", "hedgerow", n * peers / seconds, "values/s", peers=peers),
        row("mask_vector_seconds", "hedgerow", seconds, "s", values=n, peers=peers),
    ]
    for ring_bits in RINGS:
        words = np.random.default_rng(1).integers(0, 1 << ring_bits, n, dtype=np.uint64)
        residues = words.astype(residue_dtype(ring_bits))
        seconds = median_cpu(partial(repack, residues, ring_bits), repeats)
        out.append(row("pack_unpack_seconds", "hedgerow", seconds, "s", values=n, bits=ring_bits))
    secrets = [shamir.random_element() for _ in range(32)]
    seconds = median_cpu(lambda: shamir.split(secrets, 67, 100), 3) / len(secrets)
    out.append(row("share_secret_67_of_100", "hedgerow", seconds, "s"))
    shares = dict(enumerate(shamir.split(secrets[:1], 67, 100)))
    held = {k: share[0] for k, share in shares.items()}
    shamir.restore(held, 67)
    seconds = median_cpu(lambda: [shamir.restore(held, 67) for _ in range(50)], 3) / 50
    out.append(row("restore_secret_67_of_100", "hedgerow", seconds, "s"))
    if PEERS_PYTHON.exists():
        try:
            done = subprocess.run(
                [str(PEERS_PYTHON), "-c", FLOWER, str(n), str(peers)],
                capture_output=True,
                text=True,
                check=True,
            )
            spent, version = done.stdout.split()
            out.append(
                row("mask_values", "flower", n * peers / float(spent), "values/s", version=version)
            )
        except subprocess.CalledProcessError:
            print("flower: not in .venv-peers, skipped")
    else:
        print("flower: no .venv-peers, skipped")
    return out


class Stopped(Exception):
    """The silo's process ends here, as the scenario asks."""


@dataclass
class CountingLink(MemoryLink):
    """A silo's end in this process, which counts the bytes of its frames."""

    dies_at: str = ""
    up: int = 0
    down: int = 0

    def exchange(self, step: Any, at: ExchangeKey, offer: Any) -> Any:
        """Meet at the barrier, or die."""
        if f"{step.name}@{at.round}" == self.dies_at:
            raise Stopped
        reply = super().exchange(step, at, offer)
        self.up += size(offer)
        self.down += size(reply)
        return reply


class TimedExecutor(ThreadPoolExecutor):
    """Runs the coordinator half's heavy work and adds up its CPU time."""

    spent = 0.0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a function and add its CPU time."""

        def timed() -> Any:
            start = time.thread_time()
            try:
                return fn(*args, **kwargs)
            finally:
                self.spent += time.thread_time() - start

        return super().submit(timed)


def size(payload: Any) -> int:
    return sum(message.ByteSize() for message in codec_of(type(payload)).encode(payload))


def make_identities(folder: Path, silos: tuple[Silo, ...]) -> dict[Silo, FileIdentity]:
    ca = folder / "ca"
    authority.create_authority(ca, "bench", time.time())
    identities = {}
    for silo in silos:
        request = authority.create_request(folder / silo, "bench", Role.SILO, silo)
        paths = IdentityPaths.of(folder / silo)
        paths.certificate.write_bytes(
            authority.sign_request(
                ca, request.read_bytes(), Role.SILO, silo, now=time.time(), days=1.0
            )
        )
        paths.roots.write_bytes((ca / "ca.crt").read_bytes())
        identities[silo] = FileIdentity(paths)
    return identities


class Watched:
    """What one scenario measured, by round: wall, the silos' CPU, bytes of one silo."""

    def __init__(self, rounds: int) -> None:
        self.wall = [0.0] * rounds
        self.cpu = [0.0] * rounds
        self.silo_cpu: list[list[float]] = [[] for _ in range(rounds)]
        self.up = [0] * rounds
        self.down = [0] * rounds
        self.present = [0] * rounds
        self.error = ""
        self.ending_seconds = 0.0
        self.setup_cpu: list[float] = []


def federation(
    identities: dict[Silo, FileIdentity], lost: int, n_values: int, rounds: int, lose_at: int
) -> Watched:
    """Sum ``rounds`` vectors; ``lost`` silos die just before they upload that of ``lose_at``."""
    silos = tuple(sorted(identities))
    dying = set(silos[1 : 1 + lost])
    watched = Watched(rounds)
    lock = threading.Lock()
    parameters = SumParameters(batch=rounds)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        heavy = TimedExecutor(1)
        loop.set_default_executor(heavy)
        pool = ThreadPoolExecutor(len(silos))
        hub = Barrier(silos, silos, 600.0)

        def silo_main(silo: Silo) -> None:
            dies_at = f"sum-masked@{lose_at}" if silo in dying else ""
            link = CountingLink(silo, hub, loop, dies_at=dies_at)
            sums = SiloSums(
                link,
                LocalVault(),
                identities[silo],
                silo=silo,
                roster=silos,
                job_id="bench",
                job_digest=b"job",
                attempt=1,
                parameters=parameters,
                opened=OpenedSets(()),
            )
            values = np.random.default_rng(silos.index(silo)).integers(
                0, 1 << 40, n_values, dtype=np.uint64
            )
            try:
                start = time.thread_time()
                sums.setup(ExchangeKey(0))
                with lock:
                    watched.setup_cpu.append(time.thread_time() - start)
                for round_ in range(rounds):
                    values[0] = round_
                    up, down, start = link.up, link.down, time.thread_time()
                    sums.total(ExchangeKey(round_), values, state=bytes(32))
                    with lock:
                        watched.silo_cpu[round_].append(time.thread_time() - start)
                    if silo == silos[0]:
                        watched.up[round_] = link.up - up
                        watched.down[round_] = link.down - down - 8 * n_values
            except Stopped:
                loop.call_soon_threadsafe(hub.drop, silo, "lost")
            except JobStopped:
                pass

        threads = [loop.run_in_executor(pool, silo_main, silo) for silo in silos]
        sums = CoordinatorSums(
            hub, job_id="bench", attempt=1, parameters=parameters, opened=OpenedSets(())
        )
        await sums.setup(ExchangeKey(0))
        for round_ in range(rounds):
            wall, cpu = time.perf_counter(), time.thread_time() + heavy.spent
            try:
                outcome = await sums.total(ExchangeKey(round_), n_values)
            except QuorumLost as error:
                watched.error = str(error)
                watched.ending_seconds = time.perf_counter() - wall
                break
            watched.wall[round_] = time.perf_counter() - wall
            watched.cpu[round_] = time.thread_time() + heavy.spent - cpu
            watched.present[round_] = len(outcome.present)
        else:
            await asyncio.gather(*threads)
        hub.end(JobStopped("the benchmark is over"))
        await asyncio.gather(*threads)

    asyncio.run(main())
    return watched


def federations(quick: bool) -> list[Row]:
    """Return the scenarios: exchange time, bytes and recovery time, or how the job ended."""
    n_values = 10_000 if quick else 100_000
    scenarios = (
        [(20, 1), (20, 5), (20, 10)] if quick else [(20, 1), (20, 5), (20, 10), (100, 1), (100, 10)]
    )
    rounds, lose_at = 6, 4
    out: list[Row] = []
    for n_silos, lost in scenarios:
        with tempfile.TemporaryDirectory() as folder:
            silos = tuple(Silo(f"silo-{k:03}") for k in range(n_silos))
            seen = federation(make_identities(Path(folder), silos), lost, n_values, rounds, lose_at)
        case = {"silos": n_silos, "lost": lost, "values": n_values}

        def note(metric: str, value: float, unit: str, case: dict[str, int] = case) -> None:
            out.append(row(metric, "hedgerow", value, unit, **case))

        calm = range(1, lose_at)  # the first sum also deals shares
        wall = statistics.median(seen.wall[r] for r in calm)
        silo = statistics.median(max(seen.silo_cpu[r]) for r in calm)
        coordinator = statistics.median(seen.cpu[r] for r in calm)
        note("sum_seconds", wall, "s")
        note("sum_silo_cpu", silo, "s")
        note("sum_coordinator_cpu", coordinator, "s")
        note("sum_bytes_up", statistics.median(seen.up[r] for r in calm), "B")
        note("sum_bytes_down", statistics.median(seen.down[r] for r in calm), "B")
        note("setup_silo_cpu", max(seen.setup_cpu), "s")
        note("shares_bytes_up", seen.up[0] - statistics.median(seen.up[r] for r in calm), "B")
        if seen.error:
            print(f"{n_silos} silos, {lost} lost: {seen.error}")
            note("ended_seconds", seen.ending_seconds, "s")
            continue
        assert seen.present[lose_at] == n_silos - lost
        note("recovering_sum_seconds", seen.wall[lose_at], "s")
        note("recovering_sum_silo_cpu", max(seen.silo_cpu[lose_at]), "s")
        note("recovering_sum_coordinator_cpu", seen.cpu[lose_at], "s")
        note("recovery_bytes_up", seen.up[lose_at] - seen.up[1], "B")
        note("recovery_bytes_down", seen.down[lose_at] - seen.down[1], "B")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller vectors, 20 silos at most")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    measured = rows(arguments.quick) + federations(arguments.quick)
    for entry in measured:
        fixed = ("metric", "who", "value", "unit")
        case = " ".join(f"{key}={value}" for key, value in entry.items() if key not in fixed)
        value = entry["value"]
        print(f"{entry['metric']:32s} {entry['who']:10s} {value:14.6g} {entry['unit']:9s} {case}")
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
