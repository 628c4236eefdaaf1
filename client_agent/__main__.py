"""The agent process: wires settings, data, keys and the loop together."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import FrameType

import click

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters, LocalTrainer
from hedgerow.boosting.strategies import NAMES
from hedgerow.client_agent import sources
from hedgerow.client_agent.accepted import AcceptedJobs
from hedgerow.client_agent.accountant import TableAccount
from hedgerow.client_agent.attempt import AgentParts
from hedgerow.client_agent.config import AgentSettings
from hedgerow.client_agent.keeper import Pause, SecretKeeper
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.client_agent.loop import Agent
from hedgerow.client_agent.state import StateFolder
from hedgerow.crypto.allocator import keep_freed_memory
from hedgerow.crypto.durable import write_atomically
from hedgerow.crypto.key_files import KeyFolder, SealingSecret, make_key_file
from hedgerow.crypto.local_vault import LocalVault
from hedgerow.crypto.vault import Vault
from hedgerow.services.identity.certificates import IdentityPaths, IdentityUnusable, Role
from hedgerow.services.identity.peers import FileIdentity, channel_credentials, expiry
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.process import logs, settings
from hedgerow.services.rpc.channel import dial, wait_until_ready
from hedgerow.services.rpc.crypto import RemoteVault
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.rpc.metering import MeteredChannel, Metrics

CRYPTO_SECONDS = 60.0
"""How long an attempt waits for the silo's crypto process."""


class Channels:
    """The channel to a peer, made anew when the certificates have changed.

    Raises
    ------
    IdentityUnusable
        At the first call. Later, files that do not fit together leave the channel that was.
    """

    def __init__(
        self, address: str, paths: IdentityPaths, metrics: Metrics, server_name: str | None
    ) -> None:
        self._address, self._paths, self._metrics = address, paths, metrics
        self._server_name = server_name
        self._lock = threading.Lock()
        self._stamp: object = None
        self._channel: MeteredChannel | None = None

    def __call__(self) -> MeteredChannel:
        """Return the current channel."""
        with self._lock:
            try:
                stamp = self._paths.stamp()
                if self._channel is not None and stamp == self._stamp:
                    return self._channel
                credentials = channel_credentials(self._paths)
            except (OSError, IdentityUnusable):
                if self._channel is None:
                    raise
                return self._channel
            # The old channel is left to its running calls; the last of them closes it.
            self._channel = dial(
                self._address, credentials, self._metrics, server_name=self._server_name
            )
            self._stamp = stamp
            return self._channel


class Identities:
    """The silo's identity, read anew when its files have changed.

    Raises
    ------
    IdentityUnusable
        At the start. Later, files that do not fit together leave what was.
    """

    def __init__(self, paths: IdentityPaths, revoked: RevokedCertificates) -> None:
        self._paths = paths
        self._revoked = revoked
        self._lock = threading.Lock()
        self._stamp = paths.stamp()
        self._current = FileIdentity(paths, revoked=revoked)

    def __call__(self) -> FileIdentity:
        """Return the current identity."""
        with self._lock:
            try:
                stamp = self._paths.stamp()
                if stamp != self._stamp:
                    self._current = FileIdentity(self._paths, revoked=self._revoked)
                    self._stamp = stamp
            except (OSError, IdentityUnusable):
                pass
            return self._current


def build(config: AgentSettings) -> tuple[Agent, Callable[[], None], int]:
    """Return the agent, a function that frees what it holds, and the port of its metrics.

    Raises
    ------
    FederationError
        The identity, the state folder, the ledger or the table cannot be used.
    """
    paths = IdentityPaths.of(config.identity)
    revoked = RevokedCertificates(paths, config.revoked, config.state / "revoked.crl")
    identities = Identities(paths, revoked)
    subject = identities().subject
    silo = Silo(subject.name)
    if subject.role is not Role.SILO:
        raise FederationError(
            f"an agent needs the certificate of a silo; this one is of role {subject.role}"
        )
    metrics = Metrics()
    metrics.certificate_expiry.set_function(lambda: expiry(paths))
    state = StateFolder(config.state)
    ledger = SiloLedger(
        state.ledger, silo, "coordinator", time.time, max_bytes=config.policy.max_bytes
    )
    channels = Channels(config.coordinator, paths, metrics, config.server_name)
    rows, n_columns = sources.extent(config.data)
    parts = AgentParts(
        silo=silo,
        address=config.coordinator,
        channel=channels,
        identity=identities,
        state=state,
        ledger=ledger,
        accepted=AcceptedJobs(state.accepted),
        policy=config.policy,
        account=TableAccount(
            config.state,
            config.data.table,
            config.policy.max_epsilon,
            config.policy.max_epsilon_job,
        ),
        load=_loader(config, silo),
        secrets=SecretKeeper(state, _vaults(config, paths, metrics)),
        registration=Registration(
            state.instance_id,
            version("hedgerow"),
            config.policy.strategies or NAMES,
            1 << max(rows - 1, 0).bit_length() if rows else 0,
            n_columns,
        ),
        revoked=revoked,
        n_threads=config.threads,
        has_test=config.test is not None,
        trainer=_trainer(config),
    )
    stop_metrics: Callable[[], None] = lambda: None  # noqa: E731
    port = 0
    if config.metrics:
        host, _, wanted = config.metrics.rpartition(":")
        stop_metrics, port = metrics.serve(host, int(wanted))

    agent = Agent(parts, once=config.once)
    metrics.lease_held.set_function(lambda: float(agent.leased))

    def close() -> None:
        stop_metrics()
        ledger.close()
        state.close()

    return agent, close, port


def _loader(config: AgentSettings, silo: Silo) -> Callable[[JobParameters, bool], Dataset]:
    def load(job: JobParameters, test: bool) -> Dataset:
        source = config.test if test and config.test is not None else config.data
        return sources.load(source, job, silo)

    return load


def _trainer(config: AgentSettings) -> LocalTrainer | None:
    if not config.dask:
        return None
    from hedgerow.client_agent.dask_training import DaskTrainer

    return DaskTrainer(config.dask)


def _vaults(
    config: AgentSettings, paths: IdentityPaths, metrics: Metrics
) -> Callable[[Pause], Vault]:
    """Return how to get the silo's vault: in its crypto process, or in this one."""
    if not config.crypto:
        sealing = config.state / "vault" / "sealing.key"
        make_key_file(sealing)
        secret = SealingSecret("key file", sealing.read_bytes())
        local = LocalVault(noise_folder=KeyFolder(sealing.parent, secret))
        return lambda pause: local
    channels = Channels(config.crypto, paths, metrics, None)

    def remote(pause: Pause) -> Vault:
        # A crypto process that starts needs a moment; an attempt is not wasted on it.
        wait_until_ready(channels(), config.crypto, CRYPTO_SECONDS)
        return RemoteVault(channels, config.crypto, pause=pause)

    return remote


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path), required=True, help="TOML file of settings."
)
def main(config: Path) -> None:
    """Run the agent of a silo."""
    keep_freed_memory()
    try:
        loaded = settings.load(AgentSettings, config)
        logs.configure(json=loaded.log_json, level=loaded.log_level)
        agent, close, port = build(loaded)

        def stop(number: int, frame: FrameType | None) -> None:
            agent.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        if loaded.ready_file is not None:
            write_atomically(loaded.ready_file, json.dumps({"metrics_port": port}).encode())
        try:
            agent.run()
        finally:
            close()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"agent: {where}{error.strerror or error}", err=True)
        sys.exit(2)
    except FederationError as error:
        click.echo(f"agent: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
