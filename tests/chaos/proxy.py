"""A TCP proxy of the tests: it cuts, holds, delays, repeats and reorders what passes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any

CHUNK_BYTES = 1 << 16


class Proxy:
    """Passes connections on ``port`` to another port of this machine, until something is asked.

    Parameters
    ----------
    target : int
        Port to which it connects.
    idle_seconds : float
        A connection that nothing has passed for so long is cut; 0 for never.
    every_seconds : float
        All connections are cut so often; 0 for never.

    Attributes
    ----------
    cuts : int
        Connections that it has cut.
    """

    def __init__(self, target: int, *, idle_seconds: float = 0.0, every_seconds: float = 0.0):
        self.target, self.port = target, 0
        self.cuts = 0
        self._idle, self._every = idle_seconds, every_seconds
        self._delay = 0.0
        self._trick = ""
        self._refuses = False
        self._links: dict[asyncio.Task[None], list[float]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open = self._call(self._begin())

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _begin(self) -> asyncio.Event:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._watch = asyncio.create_task(self._watched())
        is_open = asyncio.Event()
        is_open.set()
        return is_open

    async def _watched(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.1)
            now = time.monotonic()
            everything = 0.0 < self._every <= now - last
            last = now if everything else last
            for link, used in list(self._links.items()):
                if everything or 0.0 < self._idle <= now - used[0]:
                    self.cuts += 1
                    link.cancel()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        used = self._links[task] = [time.monotonic()]
        there: asyncio.StreamWriter | None = None
        try:
            if self._refuses:
                raise ConnectionRefusedError
            back, there = await asyncio.open_connection("127.0.0.1", self.target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, there, used))
                group.create_task(self._pump(back, writer, used))
        except (OSError, asyncio.CancelledError, ExceptionGroup):
            pass  # either end has gone, or the connection is to be cut
        finally:
            del self._links[task]
            for one in (writer, there):
                if one is not None:
                    one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, used: list[float]
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._open.wait()
            if self._delay:
                await asyncio.sleep(self._delay)
            trick, self._trick = self._trick, ""
            if trick == "repeat":
                data += data
            elif trick == "swap":
                data = data[len(data) // 2 :] + data[: len(data) // 2]
            elif trick == "half":
                data = data[: len(data) // 2]
            used[0] = time.monotonic()
            writer.write(data)
            await writer.drain()
            if trick == "half":
                break
        raise ConnectionAbortedError

    def cut(self) -> None:
        """Cut all connections; new ones pass."""

        async def cut() -> None:
            for link in list(self._links):
                self.cuts += 1
                link.cancel()

        self._call(cut())

    def cut_every(self, seconds: float) -> None:
        """Cut all connections so often from now on; 0 for never."""
        self._every = seconds

    def refuse(self, refused: bool) -> None:
        """Cut all connections, and let no new one pass; or let them pass again."""
        self._refuses = refused
        self.cut()

    def hold(self, held: bool) -> None:
        """Let nothing pass for the time being, and lose nothing; or let it pass again."""
        self._loop.call_soon_threadsafe(self._open.clear if held else self._open.set)

    def delay(self, seconds: float) -> None:
        """Delay every piece by so much from now on."""
        self._delay = seconds

    @property
    def tricked(self) -> bool:
        """Whether the last piece that was to be spoilt has passed."""
        return not self._trick

    def trick(self, name: str) -> None:
        """Spoil the next piece: ``repeat`` it, ``swap`` its halves, or pass ``half`` and cut."""
        self._trick = name

    def close(self) -> None:
        """Cut everything and end."""

        async def end() -> None:
            self._watch.cancel()
            self._server.close()
            links = list(self._links)
            for link in links:
                link.cancel()
            await asyncio.gather(self._watch, *links, return_exceptions=True)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
