"""gRPC in a simulation: the product's own stubs and servicers over lines with faults.

A message is the bytes that gRPC would be given. It takes a drawn time, in order within its call and
in any order beside others. A line that is cut holds messages back as TCP does; after
:data:`KEEPALIVE_SECONDS` both ends give the connection up, each by itself. A reset ends a
connection at once, and what was under way on it is lost.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from tests.simulation.scheduler import EPOCH, Process, Thread, World, world

KEEPALIVE_SECONDS = 15.0
CONNECT_SECONDS = 10.0
LONGEST = (0.003, 0.03, 0.15)
"""Longest time of a message, seconds: in a room, a country, on the earth; drawn for each run."""
UP, DOWN = "up", "down"
CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass
class Line:
    """The way between one process and the server."""

    cut: set[str] = field(default_factory=set)
    """Directions in which nothing passes."""
    slow: float = 0.0
    """Longest time that a message takes beyond the usual one, seconds."""
    held: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True)
class Credentials:
    """Files of one end, as gRPC is given them."""

    roots: bytes
    key: bytes
    chain: bytes
    fetch: Callable[[], Any] | None = None


class Network:
    """All lines, servers and connections of a simulation.

    Parameters
    ----------
    tap : callable
        Called with (call, direction, data) when a message is sent.
    """

    def __init__(self, here: World, tap: Callable[[Call, str, bytes], None]) -> None:
        self.world, self.tap = here, tap
        self.lines: dict[str, Line] = collections.defaultdict(Line)
        self.servers: dict[str, Server] = {}
        self.connections: list[Connection] = []
        self.n_messages = 0
        self.longest = here.random.choice(LONGEST)

    def send(self, connection: Connection, way: str, do: Callable[[], None], call: Any) -> None:
        """Have ``do`` called where a message arrives, if it does."""
        line = self.lines[connection.client.name]
        draw = self.world.random
        seconds = draw.uniform(0.0002, self.longest)
        if line.slow:
            seconds += draw.random() * line.slow
        when = max(self.world.now + seconds, call.last.get(way, 0.0))
        call.last[way] = when
        self.world.at(when, lambda: self._arrive(connection, line, way, do))

    def _arrive(self, connection: Connection, line: Line, way: str, do: Callable[[], None]) -> None:
        if way in line.cut:
            line.held.append(lambda: self._arrive(connection, line, way, do))
        elif connection.ends[way]:
            do()

    def cut(self, name: str, ways: Iterable[str]) -> None:
        """Let nothing pass on a line in some directions."""
        line = self.lines[name]
        line.cut |= set(ways)
        for connection in self.connections:
            if connection.client.name == name:
                self._give_up_later(connection, line)

    def _give_up_later(self, connection: Connection, line: Line) -> None:
        began = self.world.now

        def look() -> None:
            if not line.cut or not connection.open:
                return
            if self.world.now - began >= KEEPALIVE_SECONDS:
                # Neither end hears of it: each gives it up.
                connection.end(UP, "keepalive timeout")
                connection.end(DOWN, "keepalive timeout")
            else:
                self.world.after(1.0, look)

        look()

    def heal(self, name: str) -> None:
        """Let all pass again, what was held back first."""
        line = self.lines[name]
        line.cut, line.slow = set(), 0.0
        held, line.held = line.held, []
        for do in held:
            do()
        for connection in list(self.connections):
            if connection.client.name == name:
                for way, other in ((UP, DOWN), (DOWN, UP)):
                    if not connection.ends[other]:  # a packet to an end that is gone
                        connection.end_soon(way, "Connection reset by peer")

    def reset(self, name: str) -> None:
        """End the connections of a process, at both ends."""
        for connection in list(self.connections):
            if connection.client.name == name:
                connection.end(UP, "Connection reset by peer")
                connection.end(DOWN, "Connection reset by peer")

    def process_ended(self, process: Process) -> None:
        """End the connections of a process that is there no more."""
        for address, server in list(self.servers.items()):
            if server.process is process:
                del self.servers[address]
        for connection in list(self.connections):
            if connection.client is process or connection.server.process is process:
                way = UP if connection.client is process else DOWN
                other = DOWN if way == UP else UP
                connection.ends[other] = False  # the dead end hears nothing
                if not self.lines[connection.client.name].cut:
                    connection.end_soon(way, "Socket closed")


class Connection:
    """One connection of a channel."""

    def __init__(self, network: Network, client: Process, server: Server, chain: bytes) -> None:
        self.network, self.client, self.server, self.chain = network, client, server, chain
        server.n_peers += 1
        self.peer = f"ipv4:10.0.0.{client.pid % 200}:{20_000 + server.n_peers}"
        self.ends = {UP: True, DOWN: True}
        """Whether the end that hears in a direction is there: of up it is the server."""
        self.calls: list[Call] = []
        network.connections.append(self)
        if network.lines[client.name].cut:
            network._give_up_later(self, network.lines[client.name])

    @property
    def open(self) -> bool:
        """Whether the client has it."""
        return self.ends[DOWN]

    def end_soon(self, way: str, why: str) -> None:
        """End one end, once the word of it has arrived there."""
        here = self.network.world
        here.after(here.random.uniform(0.0002, 0.003), lambda: self.end(way, why))

    def end(self, way: str, why: str) -> None:
        """End one end: that of the server (up), or of the client (down)."""
        if not self.ends[way]:
            return
        self.ends[way] = False
        for call in list(self.calls):
            if way == UP:
                call.served_end()
            else:
                call.finish(grpc.StatusCode.UNAVAILABLE, why)
        if not any(self.ends.values()):
            self.network.connections.remove(self)


class Channel(grpc.Channel):
    """A client's channel."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self.address, self.credentials = address, credentials
        process = world().process
        assert process is not None
        self.process = process
        self.closed = False
        self.connection: Connection | None = None
        self._connecting: list[Callable[[Connection | None, str], None]] = []

    def connected(self, do: Callable[[Connection | None, str], None]) -> None:
        """Call ``do`` with a connection, or with why there is none."""
        if self.connection is not None and self.connection.open:
            do(self.connection, "")
            return
        self._connecting.append(do)
        if len(self._connecting) == 1:
            self._try(world().now)

    def _try(self, began: float) -> None:
        here, net = world(), network()
        line = net.lines[self.process.name]
        if line.cut:
            if here.now - began > CONNECT_SECONDS:
                self._found(None, "failed to connect: timeout")
            else:
                here.after(0.5, lambda: self._try(began))
            return
        here.after(here.random.uniform(0.001, 0.006), self._shake)

    def _shake(self) -> None:
        """Do the handshake."""
        from hedgerow.services.identity.certificates import IdentityUnusable, verify_chain

        server = network().servers.get(self.address)
        if server is None:
            self._found(None, "Connection refused")
            return
        theirs = server.credentials()
        now = EPOCH + world().now
        try:
            verify_chain(self.credentials.chain, theirs.roots, now)
            verify_chain(theirs.chain, self.credentials.roots, now)
        except IdentityUnusable as error:
            self._found(None, f"TLS handshake failed: {error}")
            return
        self._found(Connection(network(), self.process, server, self.credentials.chain), "")

    def _found(self, connection: Connection | None, why: str) -> None:
        self.connection = connection
        waiting, self._connecting = self._connecting, []
        for do in waiting:
            do(connection, why)

    def _method(self, method: str, give: Any, take: Any, asks: bool, answers: bool) -> Method:
        return Method(self, method, give or bytes, take or bytes, asks, answers)

    def unary_unary(self, method, request_serializer=None, response_deserializer=None, **_):  # type: ignore
        return self._method(method, request_serializer, response_deserializer, False, False)

    def unary_stream(self, method, request_serializer=None, response_deserializer=None, **_):  # type: ignore
        return self._method(method, request_serializer, response_deserializer, False, True)

    def stream_unary(self, method, request_serializer=None, response_deserializer=None, **_):  # type: ignore
        return self._method(method, request_serializer, response_deserializer, True, False)

    def stream_stream(self, method, request_serializer=None, response_deserializer=None, **_):  # type: ignore
        return self._method(method, request_serializer, response_deserializer, True, True)

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Do nothing: who asks looks at the calls as well."""

    def unsubscribe(self, callback: Any) -> None:
        """Do nothing."""

    def close(self) -> None:
        self.closed = True
        if self.connection is not None and self.connection.open:
            for call in list(self.connection.calls):
                call.cancel("Channel closed!")
            self.connection.end_soon(UP, "closed")
            self.connection.end(DOWN, "Channel closed!")

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Method:
    """What a stub calls."""

    channel: Channel
    path: str
    give: Callable[[Any], bytes]
    take: Callable[[bytes], Any]
    asks: bool
    """Whether requests are a stream."""
    answers: bool

    def __call__(self, request: Any, timeout: float | None = None, **options: Any) -> Any:
        call = self.future(request, timeout, **options)
        return call if self.answers else call.result()

    def with_call(self, request: Any, timeout: float | None = None, **options: Any) -> Any:
        call = self.future(request, timeout, **options)
        return call.result(), call

    def future(self, request: Any, timeout: float | None = None, **_: Any) -> Call:
        return Call(self, request, timeout)


class Call(grpc.RpcError, grpc.Call, grpc.Future):  # type: ignore[misc]
    """A call, as its client sees it; its server's half is :class:`Served`."""

    def __init__(self, method: Method, request: Any, timeout: float | None) -> None:
        self.method, self.path = method, method.path
        self.client = method.channel.process
        self.last: dict[str, float] = {}
        self.connection: Connection | None = None
        self.served: Served | None = None
        self.deadline = None if timeout is None else world().now + timeout
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: Any = ()
        self._initial: Any = ()
        self._answers: collections.deque[bytes] = collections.deque()
        self._waiting: list[Thread] = []
        self._callbacks: list[Callable[[Any], None]] = []
        self._cancelled = False
        self._unsent: list[bytes | None] = []
        if method.channel.closed:
            raise ValueError("Cannot invoke RPC on closed channel!")
        self._timer = None if timeout is None else world().after(timeout, self._late)
        if method.asks:
            world().spawn(self.client, lambda: self._ask(iter(request)))
        else:
            self._unsent = [method.give(request), None]
        method.channel.connected(self._begin)

    def _ask(self, requests: Iterator[Any]) -> None:
        for request in requests:
            if self._code is not None:
                return
            self._request(self.method.give(request))
        self._request(None)

    def _begin(self, connection: Connection | None, why: str) -> None:
        if self._code is not None:
            return
        if connection is None:
            self.finish(grpc.StatusCode.UNAVAILABLE, why)
            return
        self.connection = connection
        connection.calls.append(self)
        unsent, self._unsent = self._unsent, []
        net = network()
        net.send(connection, UP, lambda: connection.server.begin(self), self)
        for data in unsent:
            self._request(data)

    def _request(self, data: bytes | None) -> None:
        if self._code is not None:
            return
        if self.connection is None:
            self._unsent.append(data)
            return
        net = network()
        if data is not None:
            net.tap(self, UP, data)
            net.n_messages += 1
        net.send(self.connection, UP, lambda: self.served and self.served.feed(data), self)

    # --- from the server ---

    def answer(self, data: bytes) -> None:
        """Take a message of the server."""
        if self._code is None:
            self._answers.append(data)
            self._wake()

    def head(self, metadata: Any) -> None:
        """Take the initial metadata."""
        self._initial = metadata

    def finish(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> None:
        """End, at the client."""
        if self._code is not None:
            return
        self._code, self._details, self._trailing = code, details, trailing
        if self._timer is not None:
            world().cancel(self._timer)
        self.forget()
        self._wake()
        for callback in self._callbacks:
            callback(self)

    def forget(self) -> None:
        """Leave the connection, once both ends are over."""
        over = self._code is not None and (self.served is None or self.served.over)
        if over and self.connection is not None and self in self.connection.calls:
            self.connection.calls.remove(self)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            world().wake(thread)

    def _late(self) -> None:
        if self._code is None:
            self._tell_cancelled()
            self.finish(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _tell_cancelled(self) -> None:
        if self.connection is not None and self.connection.open:
            network().send(self.connection, UP, self.served_end, self)

    def served_end(self) -> None:
        """Cancel the server's half."""
        if self.served is not None:
            self.served.cancel()

    # --- grpc.Call, grpc.Future ---

    def cancel(self, details: str = "Locally cancelled by application!") -> bool:
        if self._code is None:
            self._cancelled = True
            self._tell_cancelled()
            self.finish(grpc.StatusCode.CANCELLED, details)
        return True

    def _wait(self, reached: Callable[[], bool], timeout: float | None = None) -> bool:
        here = world()
        end = None if timeout is None else here.now + timeout
        while not reached():
            left = None if end is None else end - here.now
            if left is not None and left <= 0:
                return False
            thread = here.current
            assert thread is not None
            self._waiting.append(thread)
            here.park(left)
        return True

    def result(self, timeout: float | None = None) -> Any:
        if not self._wait(self.done, timeout):
            raise grpc.FutureTimeoutError
        if self._cancelled:
            raise grpc.FutureCancelledError
        if self._code is not grpc.StatusCode.OK:
            raise self
        return self.method.take(self._answers[0])

    def exception(self, timeout: float | None = None) -> Any:
        self._wait(self.done, timeout)
        return None if self._code is grpc.StatusCode.OK else self

    def traceback(self, timeout: float | None = None) -> Any:
        return None

    def __iter__(self) -> Call:
        return self

    def __next__(self) -> Any:
        self._wait(lambda: bool(self._answers) or self.done())
        if self._answers:
            return self.method.take(self._answers.popleft())
        if self._code is grpc.StatusCode.OK:
            raise StopIteration
        raise self

    def done(self) -> bool:
        return self._code is not None

    def running(self) -> bool:
        return self._code is None

    def cancelled(self) -> bool:
        return self._cancelled

    def is_active(self) -> bool:
        return self._code is None

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        if self._code is not None:
            fn(self)
        else:
            self._callbacks.append(fn)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.add_done_callback(lambda _: callback())
        return True

    def time_remaining(self) -> float | None:
        return None if self.deadline is None else max(self.deadline - world().now, 0.0)

    def code(self) -> grpc.StatusCode | None:
        self._wait(self.done)
        return self._code

    def details(self) -> str:
        self._wait(self.done)
        return self._details

    def initial_metadata(self) -> Any:
        return self._initial

    def trailing_metadata(self) -> Any:
        self._wait(self.done)
        return self._trailing

    def __str__(self) -> str:
        return f"{self.path}: {self._code}: {self._details}"


@dataclass(frozen=True)
class Details:
    """What interceptors are given of a call."""

    method: str
    invocation_metadata: Any = ()


class Server:
    """In place of ``grpc.aio.Server``."""

    def __init__(self, interceptors: Iterable[Any] = (), **_: Any) -> None:
        process = world().process
        assert process is not None
        self.process, self._interceptors = process, list(interceptors)
        self._generic: list[Any] = []
        self._handlers: dict[str, Any] = {}
        self._address = ""
        self._credentials: Credentials | None = None
        self.loop = asyncio.get_running_loop()
        self.n_peers = 0
        self._open: set[asyncio.Task[None]] = set()
        self._stopping = False

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: they are among the generic ones."""

    def add_secure_port(self, address: str, credentials: Credentials) -> int:
        if address in network().servers:
            raise RuntimeError(f"Failed to bind to address {address}")
        self._address, self._credentials = address, credentials
        return int(address.rpartition(":")[2])

    def credentials(self) -> Credentials:
        """Return the certificates that it shows now."""
        assert self._credentials is not None
        fresh = self._credentials.fetch() if self._credentials.fetch else None
        if fresh is not None:
            self._credentials = Credentials(
                fresh.roots, fresh.key, fresh.chain, self._credentials.fetch
            )
        return self._credentials

    async def start(self) -> None:
        network().servers[self._address] = self

    async def stop(self, grace: float | None = None) -> None:
        network().servers.pop(self._address, None)
        self._stopping = True
        if self._open:
            await asyncio.wait(set(self._open), timeout=grace or 0.0)
        for task in sorted(self._open, key=hash):
            task.cancel()
        await asyncio.sleep(0)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        await asyncio.sleep(timeout or 1e9)
        return True

    async def handler(self, path: str) -> Any:
        """Return the method's handler behind all interceptors."""
        if path not in self._handlers:
            self._handlers[path] = await self._intercepted(Details(path), 0)
        return self._handlers[path]

    async def _intercepted(self, details: Details, k: int) -> Any:
        if k == len(self._interceptors):
            found = (one.service(details) for one in self._generic)
            return next((handler for handler in found if handler is not None), None)

        async def others(call: Any) -> Any:
            return await self._intercepted(call, k + 1)

        return await self._interceptors[k].intercept_service(others, details)

    def begin(self, call: Call) -> None:
        """Serve a call whose first message has arrived."""
        served = call.served = Served(self, call)
        if self.process.alive:
            self.loop.call_soon_threadsafe(served.start)


class Served:
    """A call, as its server sees it, and what a servicer gets as its context."""

    def __init__(self, server: Server, call: Call) -> None:
        self.server, self.call = server, call
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._code: Any = None
        self._details, self._trailing = "", ()
        self._callbacks: list[Callable[[Any], None]] = []
        self.over = False

    def start(self) -> None:
        """Begin, in the server's loop."""
        if self.over or not self.server.process.alive:
            return
        self._task = self.server.loop.create_task(self._run())
        self.server._open.add(self._task)
        self._task.add_done_callback(self.server._open.discard)

    def feed(self, data: bytes | None) -> None:
        """Take a request; called where it arrives."""
        if self.server.process.alive and not self.over:
            self.server.loop.call_soon_threadsafe(self._requests.put_nowait, data)

    def cancel(self) -> None:
        """End it: the client has gone."""
        if self.server.process.alive and not self.over:
            self.server.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self.over:
            self._task.cancel()
        self.over = True

    def _send(self, do: Callable[[], None]) -> None:
        connection = self.call.connection
        if connection is not None and connection.ends[UP]:
            network().send(connection, DOWN, do, self.call)

    def _answer(self, data: bytes) -> None:
        net = network()
        net.tap(self.call, DOWN, data)
        net.n_messages += 1
        self._send(lambda: self.call.answer(data))

    async def _run(self) -> None:
        code, details = grpc.StatusCode.OK, ""
        try:
            handler = await self.server.handler(self.call.path)
            if handler is None:
                code, details = grpc.StatusCode.UNIMPLEMENTED, "Method not found!"
            else:
                await self._serve(handler)
        except grpc.aio.AbortError:
            code, details = self._code, self._details
        except asyncio.CancelledError:
            code, details = grpc.StatusCode.CANCELLED, "cancelled"
        except Exception as error:
            code = grpc.StatusCode.UNKNOWN
            details = f"Unexpected {type(error)}: {error}"
            world().defects.append(f"{self.call.path} at the server: {details}")
        self._code, self.over = code, True
        for callback in self._callbacks:
            callback(self)
        trailing = self._trailing
        self._send(lambda: self.call.finish(code, details, trailing))
        self.call.forget()

    async def _serve(self, handler: Any) -> None:
        decode = handler.request_deserializer or bytes
        encode = handler.response_serializer or bytes
        if handler.request_streaming:
            request: Any = self._stream(decode)
        else:
            data = await self._requests.get()
            assert data is not None
            request = decode(data)
        if handler.response_streaming:
            behave = handler.stream_stream or handler.unary_stream
            async for answer in behave(request, self):
                self._answer(encode(answer))
                await asyncio.sleep(0)
        else:
            behave = handler.stream_unary or handler.unary_unary
            self._answer(encode(await behave(request, self)))

    async def _stream(self, decode: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        while (data := await self._requests.get()) is not None:
            yield decode(data)

    # --- grpc.aio.ServicerContext ---

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        self._code = CODES.get(code, code)
        self._details, self._trailing = details, tuple(trailing_metadata)
        raise grpc.aio.AbortError("Locally aborted.")

    def auth_context(self) -> dict[str, list[bytes]]:
        connection = self.call.connection
        assert connection is not None
        return {"x509_pem_cert": [connection.chain], "ssl_tls_version": [b"TLSv1.3"]}

    def peer(self) -> str:
        assert self.call.connection is not None
        return self.call.connection.peer

    def code(self) -> Any:
        return 0 if self._code is None else self._code

    def trailing_metadata(self) -> Any:
        return self._trailing

    def time_remaining(self) -> float | None:
        return self.call.time_remaining()

    def invocation_metadata(self) -> Any:
        return ()

    async def send_initial_metadata(self, metadata: Any) -> None:
        self._send(lambda: self.call.head(metadata))

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)


_network: Network | None = None


def network() -> Network:
    """Return the network of the running simulation."""
    assert _network is not None
    return _network


def use(made: Network) -> None:
    """Let all channels and servers be on this network."""
    global _network
    _network = made


@dataclass(frozen=True)
class _Configuration:
    roots: bytes
    key: bytes
    chain: bytes


def install() -> None:
    """Put channels, servers and credentials in place of gRPC's."""

    def server_credentials(first: Any, fetch: Any, **_: Any) -> Credentials:
        return Credentials(first.roots, first.key, first.chain, fetch)

    grpc.secure_channel = lambda address, credentials, options=None, **_: Channel(  # type: ignore
        address, credentials
    )
    grpc.ssl_channel_credentials = lambda roots, key, chain: Credentials(roots, key, chain)  # type: ignore
    grpc.ssl_server_certificate_configuration = lambda pairs, roots: _Configuration(  # type: ignore
        roots, *pairs[0]
    )
    grpc.dynamic_ssl_server_credentials = server_credentials  # type: ignore
    grpc.aio.server = Server  # type: ignore
