"""A wide-area link on loopback: ``python -m benchmarks._slow_link TARGET_PORT RTT_MS MBIT``.

A TCP proxy in user space. Each connection is a silo's line: it carries ``MBIT`` million bits a
second each way, and what it carries arrives half of ``RTT_MS`` later. The first line of output is
the port it listens on, the last the bytes that it has carried to the target and back, when its
standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from contextlib import suppress

CHUNK_BYTES = 1 << 14
QUEUE_SECONDS = 0.25
"""How far the line may be behind before the sender has to wait, as a router's buffer."""


class SlowLink:
    """Carries bytes late, and no faster than the line.

    Parameters
    ----------
    target : int
        Port on loopback.
    delay : float
        Seconds one way.
    rate : float
        Bytes a second, each way and connection.
    """

    def __init__(self, target: int, delay: float, rate: float) -> None:
        self._target, self._delay, self._rate = target, delay, rate
        self.carried: Counter[str] = Counter()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Join a connection to one to the target."""
        with suppress(OSError, asyncio.IncompleteReadError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(
                self._carry("up", reader, far_writer), self._carry("down", far_reader, writer)
            )
        writer.close()

    async def _carry(
        self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        clock = asyncio.get_running_loop().time
        sent: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        arriving = asyncio.create_task(self._arrive(sent, writer))
        free = clock()
        try:
            while data := await reader.read(CHUNK_BYTES):
                self.carried[way] += len(data)
                free = max(free, clock()) + len(data) / self._rate
                sent.put_nowait((free + self._delay, data))
                await asyncio.sleep(max(free - clock() - QUEUE_SECONDS, 0.0))
        finally:
            sent.put_nowait((free + self._delay, b""))
            await arriving

    @staticmethod
    async def _arrive(
        sent: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        clock = asyncio.get_running_loop().time
        with suppress(OSError):
            while True:
                due, data = await sent.get()
                await asyncio.sleep(max(due - clock(), 0.0))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.close()


async def main() -> None:
    target, rtt, mbit = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    link = SlowLink(target, rtt / 2000, mbit * 1e6 / 8)
    server = await asyncio.start_server(link.connect, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps({"up": link.carried["up"], "down": link.carried["down"]}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
