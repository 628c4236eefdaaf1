"""A real PostgreSQL in a temporary folder on a free loopback port, run by no root."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def programs() -> Path | None:
    """Folder of initdb and pg_ctl, newest version first; Debian keeps them out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    on_path = shutil.which("initdb")
    return found[0].parent if found else Path(on_path).resolve().parent if on_path else None


def _unprivileged() -> pwd.struct_passwd | None:
    """The account that runs the server when the tests run as root, which it refuses."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


@contextmanager
def running_postgresql() -> Iterator[str]:
    """Yield the URL of an empty database; the server and its folder are gone afterwards."""
    bin_folder = programs()
    assert bin_folder is not None
    account = _unprivileged()
    switch = {"user": account.pw_uid, "group": account.pw_gid} if account else {}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="hedgerow-pg-"))
    try:
        if account:
            os.chown(folder, account.pw_uid, account.pw_gid)
        data = folder / "data"

        def run(program: str, *arguments: str) -> None:
            # pg_ctl leaves the server behind with our streams, so these go to a file
            with (folder / f"{program}.out").open("ab") as out:
                subprocess.run(
                    [str(bin_folder / program), *arguments],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    check=True,
                    timeout=300,
                    **switch,
                )

        run("initdb", "-D", str(data), "-A", "trust", "-U", "hedgerow", "-E", "UTF8", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder} -c fsync=off"
        run("pg_ctl", "-D", str(data), "-w", "-o", options, "-l", str(folder / "log"), "start")
        try:
            yield f"postgresql://hedgerow@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
