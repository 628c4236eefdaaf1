"""The crypto process of a silo: wires settings, keys and the server together."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click
import structlog

from hedgerow.boosting.errors import FederationError
from hedgerow.crypto.allocator import return_freed_memory
from hedgerow.crypto.config import CryptoSettings
from hedgerow.crypto.durable import write_atomically
from hedgerow.crypto.engine import Engine
from hedgerow.crypto.errors import KeyRejected
from hedgerow.crypto.key_files import KeyFolder
from hedgerow.crypto.local_vault import LocalVault
from hedgerow.services.identity.certificates import IdentityPaths
from hedgerow.services.identity.peers import expiry, server_credentials
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.process import logs, settings
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
    metrics.certificate_expiry.set_function(lambda: expiry(paths))
    config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = KeyFolder(config.state / "keys", config.sealing_secret())
    try:
        keys.check()
    except KeyRejected as error:
        raise FederationError(str(error)) from error
    if config.key_file is None and config.passphrase is None:
        log.warning(
            "private keys are sealed with a key file beside them; set key_file or passphrase",
            key_file=str(config.default_key_file),
        )
    engine = Engine(workers=config.workers)
    vault = LocalVault(engine=engine, key_folder=keys)
    servicer = CryptoServicer(vault, config.silo, metrics, max(2, config.workers))
    serving = await serve(
        config.listen,
        [servicer.register],
        metrics,
        server_credentials(paths),
        revoked=RevokedCertificates(paths, config.revoked, config.state / "revoked.crl"),
    )
    stop_metrics: Callable[[], None] = lambda: None  # noqa: E731
    metrics_port = 0
    if config.metrics:
        host, _, port = config.metrics.rpartition(":")
        stop_metrics, metrics_port = metrics.serve(host, int(port))
    log.info(
        "listening",
        address=config.listen,
        port=serving.port,
        metrics_port=metrics_port,
        kernel=engine.kernel,
        workers=engine.workers,
    )
    if config.ready_file is not None:
        ports = {"port": serving.port, "metrics_port": metrics_port}
        write_atomically(config.ready_file, json.dumps(ports).encode())
    try:
        await stop.wait()
    finally:
        await serving.stop()
        stop_metrics()


async def _main(config: CryptoSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    logs.quiet(loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run(config, stop)


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path), required=True, help="TOML file of settings."
)
def main(config: Path) -> None:
    """Run the crypto process of a silo."""
    return_freed_memory()
    try:
        loaded = settings.load(CryptoSettings, config)
        logs.configure(json=loaded.log_json, level=loaded.log_level)
        asyncio.run(_main(loaded))
    except (FederationError, OSError) as error:
        click.echo(f"crypto: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
