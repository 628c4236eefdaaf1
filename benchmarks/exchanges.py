"""CPU of a barrier: real server, links and ledgers of five silos, over mTLS on loopback.

``python -m benchmarks.exchanges [--exchanges 400] [--values 200] [--json FILE]``. Counted is user
and system time of all processes, once imports and connections are done, which other load disturbs
less than wall time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Receipt, Silo, Step
from hedgerow.boosting.strategies.fedxgbllr.steps import RoundVector, TrainedWeights
from hedgerow.services.identity.authority import throwaway

SILOS = tuple(Silo(f"s{k}") for k in range(5))
STEP = Step("weights", Call.WEIGHTS, RoundVector, Receipt, "numbers", Discloses.WEIGHTS)
WARM = 20
"""Exchanges that are not counted."""


def spent() -> float:
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def offer(folder: Path, paths: Any, silo: Silo, sizes: tuple[int, int], pipe: Connection) -> None:
    """Make a silo's exchanges; send the CPU seconds that they took."""
    from hedgerow.client_agent.ledger import SiloLedger
    from hedgerow.client_agent.state import StateFolder
    from hedgerow.services.identity.peers import channel_credentials
    from hedgerow.services.rpc.channel import dial
    from hedgerow.services.rpc.link import GrpcChannel
    from hedgerow.services.rpc.metering import Metrics

    n_exchanges, n_values = sizes
    address = f"127.0.0.1:{pipe.recv()}"
    channel = dial(address, channel_credentials(paths), Metrics())
    state = StateFolder(folder)
    ledger = SiloLedger(state.ledger, silo, "coordinator", time.time)
    link = GrpcChannel(lambda: channel, address, "job", 1, ledger, state.memory("job"), 600.0)
    values = np.arange(n_values, dtype=np.float32)
    began = 0.0
    for round_ in range(WARM + n_exchanges):
        if round_ == WARM:
            began = spent()
        link.exchange(STEP, ExchangeKey(round_), RoundVector(network=TrainedWeights(1, values)))
    pipe.send(spent() - began)
    link.close()


async def collect(paths: Any, n_exchanges: int, pipes: list[Connection]) -> float:
    """Close the barriers; return the CPU seconds that they took."""
    from hedgerow.coordinator.server.barrier import Barrier
    from hedgerow.services.identity.peers import server_credentials
    from hedgerow.services.rpc.exchange import ExchangeServicer, OpenAttempt
    from hedgerow.services.rpc.metering import Metrics
    from hedgerow.services.rpc.server import serve

    hub = Barrier(SILOS, SILOS, 600.0)
    servicer = ExchangeServicer(lambda *_: OpenAttempt(hub, "benchmark"))
    serving = await serve(
        "127.0.0.1:0", [servicer.register], Metrics(by_silo=True), server_credentials(paths)
    )
    for pipe in pipes:
        pipe.send(serving.port)
    began = 0.0
    for round_ in range(WARM + n_exchanges):
        if round_ == WARM:
            began = spent()
        offers = await hub.collect(STEP, ExchangeKey(round_))
        hub.answer(STEP, ExchangeKey(round_), dict.fromkeys(offers, Receipt()))
    await hub.all_delivered(60.0)
    used = spent() - began
    await serving.stop()
    return used


def main() -> None:
    """Measure, and print milliseconds of CPU a barrier."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exchanges", type=int, default=400)
    parser.add_argument("--values", type=int, default=200, help="float32 in an offer")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    n, spawn = arguments.exchanges, multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = throwaway(folder / "pki", list(SILOS), time.time())
        pipes, processes = [], []
        for silo in SILOS:
            mine, theirs = spawn.Pipe()
            own = (folder / silo, paths[f"silo/{silo}"], silo, (n, arguments.values), theirs)
            processes.append(spawn.Process(target=offer, args=own))
            processes[-1].start()
            pipes.append(mine)
        coordinator = asyncio.run(collect(paths["coordinator"], n, pipes))
        silos = sum(pipe.recv() for pipe in pipes)
        for process in processes:
            process.join()
    rows = {"silos": silos, "coordinator": coordinator, "all": silos + coordinator}
    found = [
        {"metric": "barrier_cpu", "who": who, "value": 1e3 * value / n, "unit": "ms"}
        for who, value in rows.items()
    ]
    for row in found:
        print(f"{row['metric']} {row['who']:12s} {row['value']:8.2f} {row['unit']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
