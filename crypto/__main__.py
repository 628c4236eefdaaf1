"""The crypto process of a silo: wires settings, keys and the server together."""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path

import click
import structlog

from hedgerow.boosting.errors import FederationError
from hedgerow.crypto.allocator import return_freed_memory
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers.key_files import KeyFolder
from hedgerow.crypto.config import CryptoSettings
from hedgerow.crypto.errors import KeyRejected
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.identity.certificates import IdentityPaths, Role, load_identity
from hedgerow.services.identity.peers import expiry, server_credentials
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.process import logs
from hedgerow.services.process.private import keep_private
from hedgerow.services.process.terminal import command
from hedgerow.services.rpc.crypto import CryptoServicer
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.rpc.server import serve

log = structlog.get_logger()


async def run(config: CryptoSettings, stop: asyncio.Event) -> None:
    """Serve until ``stop`` is set.

    Raises
    ------
    FederationError
        A certificate or key cannot be used.
    OSError
        The address cannot be bound.
    """
    # A crash must not leave keys in a core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    metrics = Metrics()
    paths = IdentityPaths.of(config.identity)
    subject = load_identity(paths, time.time())
    subject.expect(Role.CRYPTO, "a crypto process")
    if subject.name != config.silo:
        raise FederationError(
            f"`silo` is {config.silo}, and the certificate is of {subject.name}: they must be the "
            "same"
        )
    metrics.certificate_expiry.set_function(lambda: expiry(paths))
    metrics.watch_disks({"state": config.state})
    config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = KeyFolder(config.state / "keys", config.sealing_secret())
    try:
        keys.check()
    except KeyRejected as error:
        raise FederationError(str(error)) from error
    if config.sealed_beside:
        log.warning(
            "keys are sealed with a key file beside them; set key_uri, key_file or passphrase",
            key_file=str(config.default_key_file),
        )
    engine = Engine(workers=config.workers)
    vault = LocalVault(engine=engine, key_folder=keys)
    revoked = RevokedCertificates(paths, config.revoked, config.state / "revoked.crl")
    servicer = CryptoServicer(vault, config.silo, metrics, max(2, config.workers), revoked)
    stop_metrics, metrics_port = metrics.serve(config.metrics)
    serving = await serve(
        config.listen,
        [servicer.register],
        metrics,
        server_credentials(paths),
        revoked=revoked,
    )
    log.info(
        "listening",
        address=config.listen,
        port=serving.port,
        metrics_port=metrics_port,
        kernel=engine.kernel,
        workers=engine.workers,
    )
    config.announce(port=serving.port, metrics_port=metrics_port)
    try:
        await stop.wait()
    finally:
        await serving.stop()
        stop_metrics()


async def _main(config: CryptoSettings) -> None:
    await run(config, logs.stopped())


@command("crypto")
@click.option(
    "--config", type=click.Path(path_type=Path), required=True, help="TOML file of settings."
)
def main(config: Path) -> None:
    """Run the crypto process of a silo."""
    return_freed_memory()
    loaded = logs.configured(CryptoSettings, config)
    logs.always(silo=loaded.silo)
    keep_private(loaded.state)
    asyncio.run(_main(loaded))


if __name__ == "__main__":
    main()
