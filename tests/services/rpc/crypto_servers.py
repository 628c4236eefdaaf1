"""Crypto services over real mTLS on loopback, one a vault."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from hedgerow.crypto.vault.interface import Vault
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.identity.peers import channel_credentials, server_credentials
from hedgerow.services.rpc.channel import dial, wait_until_ready
from hedgerow.services.rpc.crypto import CryptoServicer, RemoteVault
from hedgerow.services.rpc.metering import MeteredChannel, Metrics
from hedgerow.services.rpc.server import Serving, serve

SILO = "ash"


class Caller:
    """The context of a call, as gRPC hands it to a servicer."""

    def __init__(self, certificate: bytes) -> None:
        self._certificate = certificate

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self._certificate]}

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> None:
        raise grpc.aio.AbortError(code, details)


class CryptoServers:
    """Starts services on a loop in a thread of its own; every vault gets its own server."""

    def __init__(self, folder: Path) -> None:
        self.paths = throwaway(folder, [SILO, "birch"], time.time())
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self._serving: list[Serving] = []
        self._channels: list[MeteredChannel] = []

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    def address_of(
        self, vault: Vault, metrics: Metrics | None = None, workers: int | None = None
    ) -> str:
        """Serve a vault."""

        async def start() -> Serving:
            metered = metrics or Metrics()
            servicer = CryptoServicer(vault, SILO, metered, workers)
            credentials = server_credentials(self.paths[f"crypto/{SILO}"])
            return await serve("127.0.0.1:0", [servicer.register], metered, credentials)

        self._serving.append(self.do(start()))
        return f"127.0.0.1:{self._serving[-1].port}"

    def context(self) -> Caller:
        """Return the context of a call of the silo's own agent."""
        return Caller(self.paths[f"silo/{SILO}"].certificate.read_bytes())

    def channel(self, address: str, who: str = f"silo/{SILO}") -> MeteredChannel:
        """Dial as somebody."""
        channel = dial(address, channel_credentials(self.paths[who]), Metrics())
        self._channels.append(channel)
        return channel

    def connected(self, address: str, who: str = f"silo/{SILO}") -> MeteredChannel:
        """Dial as somebody, and wait for the handshake: a busy machine takes several tries."""
        channel = self.channel(address, who)
        wait_until_ready(channel, address, 200)
        return channel

    def remote(self, vault: Vault, who: str = f"silo/{SILO}", **options: Any) -> RemoteVault:
        """Return the remote form of a vault, as the agent has it."""
        address = self.address_of(vault, **options)
        channel = self.connected(address, who)
        return RemoteVault(lambda: channel, address, 200, patience_seconds=0)

    def clear(self) -> None:
        """Stop what a test has started."""
        for channel in self._channels:
            channel.close()
        for serving in self._serving:
            self.do(serving.stop(0))
        self._channels, self._serving = [], []

    def close(self) -> None:
        self.clear()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@contextmanager
def crypto_servers() -> Iterator[CryptoServers]:
    """Give servers, and stop them at the end."""
    with tempfile.TemporaryDirectory() as folder:
        servers = CryptoServers(Path(folder))
        try:
            yield servers
        finally:
            servers.close()


class NewVault:
    """Makes fresh vaults of one form."""

    def __init__(self, servers: CryptoServers | None) -> None:
        self._servers = servers

    def __call__(self, **options: Any) -> Vault:
        local = LocalVault(**options)
        return local if self._servers is None else self._servers.remote(local)


@contextmanager
def new_vaults(form: str) -> Iterator[NewVault]:
    """Give a factory of vaults: ``local``, or ``remote`` over mTLS."""
    if form == "local":
        yield NewVault(None)
        return
    with crypto_servers() as servers:
        yield NewVault(servers)
