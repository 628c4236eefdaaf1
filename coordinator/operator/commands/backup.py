"""``hedgerow backup`` and ``hedgerow restore``: all that a coordinator keeps, in one file."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, cast

import click

from hedgerow.coordinator.config import CoordinatorSettings
from hedgerow.coordinator.operator.commands.options import FILE
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.backup import back_up
from hedgerow.coordinator.server.backup import restore as restored_from
from hedgerow.crypto.durable import sync_folder
from hedgerow.services.process import settings
from hedgerow.services.process.terminal import Refused, command, tell

CONFIG = click.option("--config", type=FILE, required=True, help="Settings of the coordinator.")


@command()
@CONFIG
@click.argument("out", type=FILE)
def backup(config: Path, out: Path) -> None:
    """Write all that a coordinator keeps to the file OUT; - is standard output.

    It may run meanwhile. The file holds its database and its artefacts: jobs, records,
    checkpoints, models. Settings, keys and certificates are not in it.
    """
    loaded = settings.load(CoordinatorSettings, config)
    database, artefacts = loaded.database, Artefacts(loaded.artefacts)
    if str(out) == "-":
        back_up(database, artefacts, sys.stdout.buffer, time.time())
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{out.name}-", dir=out.parent)
    beside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            n_jobs, n_files = back_up(database, artefacts, file, time.time())
            file.flush()
            os.fsync(file.fileno())
        beside.rename(out)
        sync_folder(out.parent)
    except BaseException:  # also Ctrl-C: half a backup must not stay
        beside.unlink(missing_ok=True)
        raise
    tell(
        {"backup": str(out), "jobs": n_jobs, "files": n_files},
        f"{out}: {n_jobs} jobs, {n_files} files",
    )


@command()
@CONFIG
@click.argument("source", metavar="BACKUP", type=FILE)
@click.option("--replace", is_flag=True, help="Delete the jobs that are there.")
def restore(config: Path, source: Path, replace: bool) -> None:
    """Restore what `hedgerow backup` wrote; - is standard input. Stop the coordinator first.

    The database may be of the other kind, and the artefacts elsewhere, than when it was written.
    Jobs that had not ended go on from their last checkpoint when the coordinator is started.
    """
    loaded = settings.load(CoordinatorSettings, config)
    with tempfile.TemporaryFile() as spooled:
        file: IO[bytes] = cast(IO[bytes], spooled)
        if str(source) == "-":
            shutil.copyfileobj(sys.stdin.buffer, spooled)
            spooled.seek(0)
        elif source.is_file():
            file = source.open("rb")
        else:
            raise Refused(f"{source}: no such file")
        with file:
            found = restored_from(
                file, loaded.database, Artefacts(loaded.artefacts), replace=replace
            )
    went = [f"job {job_id} goes on after {n} rounds" for job_id, n in found.open.items()]
    tell(
        {"jobs": found.jobs, "files": found.files, "open": dict(found.open)},
        "\n".join([f"{found.jobs} jobs, {found.files} files restored", *went]),
    )
