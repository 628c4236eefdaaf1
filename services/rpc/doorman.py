"""Limit unauthenticated connections per address, against connection floods.

gRPC's core accepts connections itself and knows one limit, over all of them, which the first
clients use up. So a thread looks at the process' descriptors. A connection on which a call has been
served belongs to the holder of a certificate; one without is a stranger's, or is being set up. Of
those of one address that have had time for a first call, the oldest beyond a number are shut down.
Beyond a number of all, the oldest of any address go first, and then, among those that have just
come, those of the address that has most: a flood displaces itself, while many agents that come at
once, as after a restart, all get in.
"""

from __future__ import annotations

import ipaddress
import math
import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import unquote

SCAN_SECONDS = 0.5
"""Time between two looks at the connections."""
MAX_STRANGERS = 64
"""Connections of one address (of IPv6: of one /64) on which no call has been served."""
YOUNG_SECONDS = 3.0
"""A connection younger than this may be being set up, and counts among all strangers only."""
SLOW_SECONDS = 10.0
"""The same where holders of certificates had to wait for their first calls, at most."""
MAX_ALL_STRANGERS = 2048
"""Those of all addresses, young ones too; at most half of the process' descriptors."""
MAX_OF_ONE = 256
"""Connections of one certificate's holder."""
MOST_DESCRIPTORS = 1 << 20

Peer = tuple[str, int]
"""Address and port of a connection's other end."""


def raise_descriptor_limit() -> None:
    """Let the process open as many descriptors as the system allows it at all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class ConnectionLimiter:
    """Shuts down connections beyond the limits.

    Parameters
    ----------
    ports : int
        Ports of this process that are watched.
    stranger_seconds : float, optional
        Longest time of a connection on which no call has been served.
    now : callable
        Monotonic clock, seconds.
    """

    def __init__(
        self,
        *ports: int,
        stranger_seconds: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ports = frozenset(ports)
        self._stranger_seconds = stranger_seconds
        self._now = now
        self._known: dict[Peer, str] = {}
        self._since: dict[Peer, float] = {}
        self._waited = 0.0
        self._sockets: dict[int, tuple[tuple[int, int], Peer | None]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="doorman", daemon=True)

    def start(self) -> ConnectionLimiter:
        """Start watching the server's connections."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop watching; open connections stay."""
        self._ended.set()
        self._thread.join()

    def know(self, peer: str, name: str) -> None:
        """Note that the holder of a certificate has made a call.

        Parameters
        ----------
        peer : str
            The connection as gRPC names it, ``ipv4:ADDRESS:PORT`` or ``ipv6:[ADDRESS]:PORT``.
        """
        address, port = address_of(peer)
        if address:
            self.admit((address, port), name)

    def admit(self, peer: Peer, name: str) -> None:
        """Note that a connection is that of a caller who is known."""
        place = _host(peer[0]), peer[1]
        if place not in self._known:
            now = self._now()
            waited = min(now - self._since.get(place, now), SLOW_SECONDS / 2.0)
            self._waited = max(self._waited, waited)
        self._known[place] = name

    def look(self) -> int:
        """Shut down the connections beyond the limits; return how many."""
        known = dict(self._known)
        present = self._connections()
        for peer in known.keys() - present.keys():
            self._known.pop(peer, None)
        now = self._now()
        self._since = {peer: since for peer, since in self._since.items() if peer in present}
        self._since = dict.fromkeys(present, now) | self._since
        # A thousand agents that come back at once wait longer for their first calls.
        young_seconds = max(YOUNG_SECONDS, 2.0 * self._waited)
        self._waited *= 0.9
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MAX_ALL_STRANGERS if soft < 0 else min(MAX_ALL_STRANGERS, soft // 2)
        held = Counter(self._known[peer] for peer in known.keys() & present.keys())
        fits = len(present) - held.total() <= min(MAX_STRANGERS, most)
        late = {
            peer
            for peer, since in self._since.items()
            if now - since >= self._stranger_seconds and peer not in self._known
        }
        if fits and not late and max(held.values(), default=0) <= MAX_OF_ONE:
            return 0
        holders: dict[str, list[Peer]] = {}
        strangers: dict[str, list[Peer]] = {}
        for peer in sorted(self._since, key=self._since.__getitem__):  # the oldest first
            name = self._known.get(peer)
            if name is None:
                strangers.setdefault(_network(peer[0]), []).append(peer)
            else:
                holders.setdefault(name, []).append(peer)
        beyond = late | {peer for own in holders.values() for peer in own[:-MAX_OF_ONE]}
        waiting: list[Peer] = []
        young: list[list[Peer]] = []
        for own in strangers.values():
            n_old = sum(now - self._since[peer] >= young_seconds for peer in own)
            old = own[:n_old]
            beyond.update(old[:-MAX_STRANGERS])
            waiting += old[-MAX_STRANGERS:]
            young.append(own[n_old:])
        excess = len(waiting) + sum(map(len, young)) - most
        waiting.sort(key=self._since.__getitem__)
        for own in (waiting, *sorted(young, key=len, reverse=True)):
            beyond.update(own[: max(excess, 0)])
            excess -= len(own)
        for peer in beyond:
            self._shut(present[peer], peer)
        return len(beyond)

    def _connections(self) -> dict[Peer, int]:
        """Return the accepted connections of the watched ports, by peer."""
        try:
            descriptors = [int(name) for name in os.listdir("/dev/fd")]
        except OSError:  # none is left even to look
            descriptors = list(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
        found = {}
        known, self._sockets = self._sockets, {}
        for descriptor in descriptors:
            try:
                status = os.fstat(descriptor)
            except OSError:
                continue
            which = status.st_dev, status.st_ino
            before, peer = known.get(descriptor, ((0, 0), None))
            if before != which or not status.st_ino:  # a number may have got another owner
                peer = self._peer(descriptor)
            self._sockets[descriptor] = which, peer
            if peer is not None:
                found[peer] = descriptor
        return found

    def _peer(self, descriptor: int) -> Peer | None:
        """Return the other end of a watched connection; the descriptor stays its owner's."""
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:
            return None
        try:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if connection.getsockname()[1] not in self._ports:
                return None
            host, port = connection.getpeername()[:2]
            return _host(host), port
        except OSError:
            return None
        finally:
            connection.detach()

    def _shut(self, descriptor: int, peer: Peer) -> None:
        # Its owner may have closed it since and have another under its number: look again.
        if self._peer(descriptor) != peer:
            return
        with suppress(OSError):
            connection = socket.socket(fileno=descriptor)
            try:
                connection.shutdown(socket.SHUT_RDWR)
            finally:
                connection.detach()

    def _run(self) -> None:
        while not self._ended.wait(SCAN_SECONDS):
            self.look()


def address_of(peer: str) -> Peer:
    """Return address and port of a connection as gRPC names it; an empty one of no address."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind in ("ipv4", "ipv6") and port.isdecimal():
        return host.strip("[]"), int(port)
    return "", 0


def _host(host: str) -> str:
    """Return an address as gRPC writes it."""
    return host.removeprefix("::ffff:").partition("%")[0]


def _network(host: str) -> str:
    """Return what counts as one address: of IPv6 the 64 bits that a site is given."""
    if ":" not in host:
        return host
    return str(ipaddress.ip_network(f"{host}/64", strict=False))
