"""The coordinator process: wires settings, store, jobs and servers together."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import click
import structlog

from hedgerow.boosting.dataset import Dataset, Schema, recode
from hedgerow.boosting.errors import DataError, FederationError
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.registry import STRATEGIES
from hedgerow.boosting.tables import for_job, read_table, short_name
from hedgerow.coordinator.config import CoordinatorSettings
from hedgerow.coordinator.server.artefacts import Artefacts, StorageFailed, folders_of
from hedgerow.coordinator.server.database import files_of
from hedgerow.coordinator.server.environment import JobEnvironment
from hedgerow.coordinator.server.jobs import Jobs
from hedgerow.coordinator.server.roster import SiloRegistry
from hedgerow.coordinator.server.standby import ActiveLease
from hedgerow.coordinator.server.store import Store
from hedgerow.crypto.allocator import keep_freed_memory
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.peers import Identities, expiry, server_credentials
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.process import logs, settings, tracing
from hedgerow.services.process.imports import without
from hedgerow.services.process.private import keep_private
from hedgerow.services.process.terminal import command
from hedgerow.services.process.trail import Actor, Trail
from hedgerow.services.rpc.exchange import ExchangeServicer
from hedgerow.services.rpc.federation import FederationServicer
from hedgerow.services.rpc.jobs import JobServicer
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.rpc.offer_memory import BufferQuota
from hedgerow.services.rpc.relay import RelayServicer
from hedgerow.services.rpc.server import serve
from hedgerow.services.wire.signed_job import open_job

log = structlog.get_logger()


ROSTER_SECONDS = 2.0
"""Time between two looks at the file of settings for other silos."""


async def run(config: CoordinatorSettings, stop: asyncio.Event, file: Path | None = None) -> None:
    """Serve until ``stop`` is set.

    Parameters
    ----------
    file : Path, optional
        File of the settings: its list of silos takes effect when it changes, nothing else of it.

    Raises
    ------
    FederationError
        A certificate, the database or the artefact store cannot be used.
    OSError
        The address cannot be bound.
    """
    trail = Trail(config.audit, "coordinator")
    paths = IdentityPaths.of(config.identity)
    metrics = Metrics(by_silo=True)
    metrics.expect_rounds(STRATEGIES.installed())
    metrics.certificate_expiry.set_function(lambda: expiry(paths))
    files = {"database": files_of(config.database), "artefacts": folders_of(config.artefacts)}
    metrics.watch_disks({name: found[0] for name, found in files.items() if found})
    revoked = RevokedCertificates(paths, config.revoked)
    identities = Identities(paths, revoked)
    identities().subject.expect(Role.COORDINATOR, "a coordinator")
    store, artefacts = Store(config.database, prepared=False), Artefacts(config.artefacts)
    loop = asyncio.get_running_loop()

    def lost() -> None:
        loop.call_soon_threadsafe(stop.set)

    active = ActiveLease(config.database, lost)
    metrics.active.set_function(lambda: float(not active.refusal))
    roster = SiloRegistry(
        frozenset(config.silos), config.lease_seconds, time.monotonic, version("hedgerow")
    )
    environment = JobEnvironment(
        store=store,
        artefacts=artefacts,
        metrics=metrics,
        registered=lambda: roster.alive,
        allowed=lambda: roster.allowed,
        evaluation=_evaluation(config),
        now=time.time,
        verify=lambda *signed: identities().verify(*signed),
        open_job=lambda signed, label: open_job(signed, identities(), label),
        approver=lambda *signed: identities().approver(*signed),
        without_crypto=lambda: roster.without_crypto,
        began=time.time(),
        max_unfinished_jobs=config.max_unfinished_jobs,
        scripts=config.scripts,
        models=config.models,
    )
    jobs = Jobs(environment, roster, config.retention.days, trail)

    def begin() -> None:
        """Become the active coordinator; blocks."""
        store.token, artefacts.guard = active.token, active.writing
        store.prepare()
        artefacts.prepare()
        log.info("active", token=active.token)

    if taken := await asyncio.to_thread(active.take):
        await asyncio.to_thread(begin)
    stop_metrics, metrics_port = metrics.serve(config.metrics)
    serving = await serve(
        config.listen,
        [
            ExchangeServicer(
                jobs.find, memory=BufferQuota(config.max_silo_bytes, config.max_waiting_bytes)
            ).register,
            FederationServicer(jobs, revoked).register,
            JobServicer(jobs, revoked).register,
            RelayServicer(roster.admit).register,
        ],
        metrics,
        server_credentials(paths),
        jobs.account,
        revoked,
        jobs.silo_ended,
        trail,
        lambda: active.refusal,
    )
    following = asyncio.create_task(_follow_roster(file, roster, trail), name="roster")
    try:
        if taken:
            jobs.start()
            active.ready = True
        log.info("listening", address=config.listen, port=serving.port, metrics_port=metrics_port)
        config.announce(port=serving.port, metrics_port=metrics_port)
        if not taken and await _stood_by(active, artefacts, stop):
            await asyncio.to_thread(begin)
            jobs.start()
            active.ready = True
        await serving.say(ready=not active.refusal)
        await stop.wait()
    finally:
        log.info("stopping")
        following.cancel()
        try:
            await jobs.shut_down()
        finally:
            # Another one may take over while calls drain: what they write then is refused.
            await asyncio.gather(serving.stop(), asyncio.to_thread(active.release))
            stop_metrics()
            store.close()
            trail.close()
    if active.lost:
        raise FederationError("another coordinator has taken over: this one ends, and stands by")


async def _stood_by(active: ActiveLease, artefacts: Artefacts, stop: asyncio.Event) -> bool:
    """Wait until this coordinator is the active one; False where it is to end before."""
    log.info("standing by", why=active.refusal)
    # The first call of an object store loads its library and connects: seconds, when all wait.
    threading.Thread(target=_open, args=(artefacts,), name="artefacts", daemon=True).start()
    while not stop.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(active.pause):
                await stop.wait()
                return False
        try:
            if await asyncio.to_thread(active.take):
                return True
        except StorageFailed as error:
            log.warning("standing by", why=str(error))
    return False


def _open(artefacts: Artefacts) -> None:
    """Look into the store of artefacts, once; where that fails it is said now."""
    try:
        artefacts.jobs()
    except StorageFailed as error:
        log.warning("standing by", why=str(error))


async def _follow_roster(file: Path | None, roster: SiloRegistry, trail: Trail) -> None:
    known = None if file is None else await asyncio.to_thread(_stamp, file)
    while file is not None:
        await asyncio.sleep(ROSTER_SECONDS)
        stamp = await asyncio.to_thread(_stamp, file)
        if stamp is None or stamp == known:
            continue
        known = stamp
        try:
            silos = (await asyncio.to_thread(settings.load, CoordinatorSettings, file)).silos
        except FederationError as error:
            log.warning("settings not read again", why=str(error))
            continue
        roster.allow(frozenset(silos))
        log.info("roster", silos=sorted(silos))
        trail.enqueue("roster-change", Actor(), about={"hedgerow.silos": sorted(silos)})


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _evaluation(
    config: CoordinatorSettings,
) -> Callable[[JobParameters, Schema, str], Dataset | None]:
    def load(job: JobParameters, schema: Schema, name: str) -> Dataset | None:
        if not name:
            return None
        if name not in config.evaluation:
            known = ", ".join(sorted(config.evaluation)) or "none"
            raise DataError(f"test_data {name!r} is not a table of the coordinator; known: {known}")
        path = config.evaluation[name]
        where = short_name(path)
        return recode(for_job(read_table(path), job, where), schema, where)

    return load


async def _main(config: CoordinatorSettings, file: Path) -> None:
    await run(config, logs.stopped(), file)


@command("coordinator")
@click.option(
    "--config", type=click.Path(path_type=Path), required=True, help="TOML file of settings."
)
def main(config: Path) -> None:
    """Run the coordinator."""
    without("sklearn", "pandas")
    keep_freed_memory()
    loaded = logs.configured(CoordinatorSettings, config)
    keep_private(*files_of(loaded.database), *folders_of(loaded.artefacts))
    tracing.configure(loaded.traces, "coordinator")
    # What is imported stays; to look through all that is kept, often, would hold up every silo.
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    asyncio.run(_main(loaded, config))


if __name__ == "__main__":
    main()
