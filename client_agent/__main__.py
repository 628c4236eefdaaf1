"""The agent process: wires settings, data, keys and the loop together."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import cast

import click
import structlog

from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import LocalTrainer
from hedgerow.boosting.strategies import NAMES
from hedgerow.boosting.trees.local import check_device
from hedgerow.client_agent import asked_ids, sources
from hedgerow.client_agent.accepted import ReplayGuard
from hedgerow.client_agent.accountant import TableAccount
from hedgerow.client_agent.asked_ids import AskedIds
from hedgerow.client_agent.calibration import Calibration
from hedgerow.client_agent.config import AgentSettings
from hedgerow.client_agent.dask_cluster import DaskCluster
from hedgerow.client_agent.keeper import Pause, VaultSessions
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.client_agent.loop import Agent
from hedgerow.client_agent.memory import MappedFiles, MemoryLimit
from hedgerow.client_agent.opened import FOLDER as OPENED
from hedgerow.client_agent.opened import TableOpenings
from hedgerow.client_agent.parts import AgentParts
from hedgerow.client_agent.seen_tables import FOLDER as SEEN
from hedgerow.client_agent.seen_tables import SeenTables
from hedgerow.client_agent.state import StateFolder
from hedgerow.crypto.allocator import keep_freed_memory
from hedgerow.crypto.ciphers.key_files import KeyFolder, SealingSecret, make_key_file
from hedgerow.crypto.errors import Refusal
from hedgerow.crypto.vault.interface import Vault
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.peers import Identities, expiry
from hedgerow.services.identity.revocation import LOOK_SECONDS, RevokedCertificates
from hedgerow.services.process import logs, tracing
from hedgerow.services.process.imports import versions_of, with_again, without
from hedgerow.services.process.private import keep_private
from hedgerow.services.process.terminal import command
from hedgerow.services.rpc.channel import Channels, Pulse, wait_until_ready
from hedgerow.services.rpc.crypto import RemoteVault
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.rpc.metering import RELAY, Metrics, methods_of

log = structlog.get_logger()

CRYPTO_SECONDS = 60.0
"""How long an attempt waits for the silo's crypto process."""


def build(config: AgentSettings, file: Path | None = None) -> tuple[Agent, Callable[[], None], int]:
    """Return the agent, a function that frees what it holds, and the port of its metrics.

    Parameters
    ----------
    file : Path, optional
        Of the settings: its table ``[answers]`` takes effect when it changes.

    Raises
    ------
    FederationError
        The identity, the state folder, the ledger or the table cannot be used.
    """
    check_device(config.device, "this agent's environment")
    paths = IdentityPaths.of(config.identity)
    revoked = RevokedCertificates(paths, config.revoked, config.state / "revoked.crl")
    identities = Identities(paths, revoked)
    subject = identities().subject
    silo = Silo(subject.name)
    subject.expect(Role.SILO, "an agent")
    logs.always(silo=silo)
    metrics = Metrics()
    metrics.certificate_expiry.set_function(lambda: expiry(paths))
    metrics.watch_disks({"state": config.state})
    state = StateFolder(config.state)
    ledger = SiloLedger(
        state.ledger, silo, "coordinator", time.time, max_bytes=config.policy.max_bytes
    )
    channels = Channels(
        config.coordinator, paths, metrics, config.server_name, revoked, config.proxy
    )
    vaults, crypto_answers = vaults_of(config, paths, metrics, revoked)
    rows, columns = sources.extent(config.data)
    files = MappedFiles(config.state / "scratch")
    tables = _rows(config, silo, state)
    cluster = DaskCluster(config.dask) if config.dask else None
    memory = MemoryLimit(config.memory_limit, files, tables.n_scored, config.threads, cluster)
    tables = replace(tables, most_read=memory.most_read, scratch=config.state / "scratch")
    parts = AgentParts(
        silo=silo,
        address=config.coordinator,
        channel=channels,
        leave=channels.leave,
        identity=identities,
        state=state,
        ledger=ledger,
        accepted=ReplayGuard(state.accepted),
        policy=config.policy,
        account=TableAccount(
            config.state,
            config.data.table,
            config.policy.most_epsilon,
            config.policy.max_epsilon_job,
            config.policy.most_delta,
        ),
        asked_ids=AskedIds(
            state.records(asked_ids.FOLDER), config.data.table, config.policy.max_ids_asked
        ).charge,
        opened=TableOpenings(
            state.records(OPENED),
            config.data.table,
            config.policy.max_close_sums,
            config.policy.max_explorations,
            config.policy.max_binnings,
            config.policy.max_label_binnings,
        ),
        seen=SeenTables(state.records(SEEN), config.policy.min_changed_rows),
        load=tables.train,
        load_test=tables.test,
        load_validation=tables.validation,
        memory=memory,
        secrets=VaultSessions(state, _summing(cluster, vaults)),
        registration=Registration(
            state.instance_id,
            version("hedgerow"),
            config.policy.strategies or NAMES,
            1 << max(rows - 1, 0).bit_length() if rows else 0,
            len(columns),
            config.policy.announced,
            next(iter(versions_of("xgboost-cpu", "xgboost").values()), ""),
            config.policy.told(columns),
        ),
        revoked=revoked,
        crypto_answers=crypto_answers,
        rates=Calibration(config, vaults).start() if config.calibrate else dict,
        n_threads=config.threads,
        trainer=_trainer(cluster),
        device=config.device,
    )
    metrics.expect_client(parts.registration.strategies, crypto=bool(config.crypto))
    stop_metrics, port = metrics.serve(config.metrics)

    stop_answering = _answering(config, file, parts, metrics)
    agent = Agent(parts, once=config.once)
    metrics.privacy_spent.labels(config.data.table).set_function(parts.account.spent)
    metrics.lease_held.set_function(lambda: float(agent.leased))

    def close() -> None:
        stop_metrics()
        stop_answering()
        ledger.close()
        state.close()

    return agent, close, port


def _rows(config: AgentSettings, silo: Silo, state: StateFolder) -> sources.SourceRows:
    """Return the silo's tables; which rows are held back nobody else can tell."""
    secret = hashlib.sha256(f"held back by {state.instance_id}".encode()).digest()
    return sources.SourceRows(
        config.data, config.test, config.hold_back, silo, secret, validation_data=config.validation
    )


def _answering(
    config: AgentSettings, file: Path | None, parts: AgentParts, metrics: Metrics
) -> Callable[[], None]:
    """Begin to answer other parties' questions; return what ends that."""
    if config.answers is None:
        return lambda: None
    from hedgerow.client_agent.serving.answering import Answering
    from hedgerow.services.rpc.sealed import ScoringResponder

    metrics.expect_messages(RELAY, methods_of(RELAY))
    answering = Answering(config, file, parts.silo, parts.ledger).start()
    end = ScoringResponder(
        parts.channel, parts.address, parts.identity, answering.may_ask, answering.answer
    ).start()

    def stop() -> None:
        end.stop()
        answering.stop()

    return stop


def _trainer(cluster: DaskCluster | None) -> LocalTrainer | None:
    if cluster is None:
        return None
    from hedgerow.client_agent.dask_training import DaskTrainer

    return DaskTrainer(cluster)


def _summing(
    cluster: DaskCluster | None, vaults: Callable[[Pause], Vault]
) -> Callable[[Pause], Vault]:
    """Return how to get a vault that sums ciphertexts on the silo's cluster, if it has one."""
    if cluster is None:
        return vaults
    from hedgerow.client_agent.dask_ciphers import DaskCiphers

    return lambda pause: cast(Vault, DaskCiphers(cluster, vaults(pause)))


def _own_keys(sealing: Path) -> KeyFolder:
    """Return where the vault in this process keeps keys, sealed with those of a file."""
    make_key_file(sealing)
    try:
        return KeyFolder(sealing.parent, SealingSecret("key file", sealing.read_bytes()))
    except ValueError as error:
        raise FederationError(f"{sealing} is damaged: {error}; restore it") from None


def vaults_of(
    config: AgentSettings, paths: IdentityPaths, metrics: Metrics, revoked: RevokedCertificates
) -> tuple[Callable[[Pause], Vault], Callable[[bool], bool | None]]:
    """Return how to get the silo's vault, in its crypto process or this one; and if it answers."""
    if not config.crypto:
        local = LocalVault(noise_folder=_own_keys(config.state / "vault" / "sealing.key"))
        return (lambda pause: local), (lambda wait: None)
    channels = Channels(config.crypto, paths, metrics)
    informed = RemoteVault(channels, config.crypto, 10.0, patience_seconds=0)
    threading.Thread(
        target=_keep_informed, args=(informed, revoked), name="revoked", daemon=True
    ).start()

    def remote(pause: Pause) -> Vault:
        # A crypto process that starts needs a moment; an attempt is not wasted on it.
        wait_until_ready(channels(), config.crypto, CRYPTO_SECONDS)
        return RemoteVault(channels, config.crypto, pause=pause)

    return remote, Pulse(channels)


def _keep_informed(vault: RemoteVault, revoked: RevokedCertificates) -> None:
    """Send the crypto process each newer revocation list, as long as the agent runs."""
    brought = 0
    while True:
        number = revoked.number
        if number != brought:
            try:
                vault.update_revocations(revoked.pem)
                brought = number
            except (FederationError, Refusal) as error:
                log.debug("crypto process not informed", why=str(error))
        time.sleep(LOOK_SECONDS)


@command("agent")
@click.option(
    "--config", type=click.Path(path_type=Path), required=True, help="TOML file of settings."
)
def main(config: Path) -> None:
    """Run the agent of a silo."""
    keep_freed_memory()
    loaded = logs.configured(AgentSettings, config)
    keep_private(loaded.state)
    tracing.configure(loaded.traces, "agent")
    without("sklearn", "pandas")
    if loaded.dask:  # its data frames are pandas'
        with_again("pandas")
    agent, close, port = build(loaded, config)

    def stop(number: int, frame: FrameType | None) -> None:
        agent.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    loaded.announce(metrics_port=port)
    try:
        agent.run()
    finally:
        close()


if __name__ == "__main__":
    main()
