"""The server of scores as a process: wires settings, ledger, relay and HTTP together."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import structlog

from hedgerow.boosting.exchange import Silo
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.client_agent.serving.config import LOOPBACK, ServeSettings
from hedgerow.client_agent.serving.models import OpenModel
from hedgerow.client_agent.serving.scoring import Scoring
from hedgerow.client_agent.state import StateFolder
from hedgerow.services.identity.certificates import IdentityPaths
from hedgerow.services.identity.peers import Identities, expiry
from hedgerow.services.identity.revocation import LOOK_SECONDS, RevokedCertificates
from hedgerow.services.process import logs
from hedgerow.services.process.trail import Actor, Trail
from hedgerow.services.rpc.channel import Channels
from hedgerow.services.rpc.metering import RELAY, Metrics, methods_of
from hedgerow.services.rpc.scoring import serve_scores
from hedgerow.services.rpc.sealed import ScoringClient

log = structlog.get_logger()


async def run(config: ServeSettings, file: Path | None, open_model: OpenModel) -> None:
    """Serve until SIGTERM or SIGINT.

    Parameters
    ----------
    file : Path or None
        Of the settings, which are read again when it changes.

    Raises
    ------
    FederationError
        A model, the identity or the state folder cannot be used.
    OSError
        The address cannot be bound.
    """
    from hedgerow.client_agent.serving.http import ScoringServer
    from hedgerow.services.rpc.http import listening

    stop, trail = logs.stopped(), Trail(config.audit, "serve")
    for model, served in sorted(config.models.items()):
        about = {"hedgerow.model": model, "file.hash.sha256": served.digest}
        trail.write("model-serve", Actor(), "success", about)
    metrics, state = Metrics(), StateFolder(config.state)
    name, end = "serve", None
    watching: asyncio.Task[None] | None = None
    if config.identity is not None:
        paths = IdentityPaths.of(config.identity)
        revoked = RevokedCertificates(paths, config.revoked, config.state / "revoked.crl")
        identities = Identities(paths, revoked)
        name = identities().subject.name
        metrics.certificate_expiry.set_function(lambda: expiry(paths))
        channels = Channels(
            config.coordinator, paths, metrics, config.server_name, revoked, config.proxy
        )
        watching = asyncio.create_task(_watch(revoked), name="revoked")
        metrics.expect_messages(RELAY, methods_of(RELAY))
        end = ScoringClient(channels, config.coordinator, identities, ())
    ledger = SiloLedger(state.ledger, Silo(name), "coordinator", time.time)
    stop_metrics, metrics_port = metrics.serve(config.metrics)
    scoring = Scoring(config, file, ledger, metrics, open_model, end)
    try:
        await scoring.start()
        if end is not None:
            end.start()
        bound = listening(config.listen)
        server = ScoringServer(scoring, config.tls, trail)
        serving = asyncio.create_task(server.serve([bound]), name="http")
        following = asyncio.create_task(scoring.follow(), name="models")
        calls, grpc_port = None, 0
        if config.grpc:
            calls, grpc_port = await serve_scores(
                config.grpc, config.tls, scoring, LOOPBACK, metrics, trail
            )
        ports = {
            "grpc_port": grpc_port,
            "port": bound.getsockname()[1],
            "metrics_port": metrics_port,
        }
        log.info("serving", listen=config.listen, **ports)
        config.announce(**ports)
        await stop.wait()
        log.info("stopping")
        following.cancel()
        if watching is not None:
            watching.cancel()
        server.should_exit = True
        await serving
        if calls is not None:
            await calls()
    finally:
        if end is not None:
            end.stop()
        stop_metrics()
        scoring.close()
        ledger.close()
        state.close()
        trail.close()


async def _watch(revoked: RevokedCertificates) -> None:
    """Poll the revocation list until cancelled."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        await asyncio.to_thread(revoked.look)
