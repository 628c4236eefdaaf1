"""``hedgerow console``: the operator's page on this machine."""

from __future__ import annotations

import contextlib
import secrets
import sys
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import click

from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.operator.commands.options import Connection, connected
from hedgerow.services.identity import certificates
from hedgerow.services.process.terminal import command, tell, wants_json

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
SHORTEST = 32
"""Characters of a password that a proxy shows for everybody whom it admits."""


@command()
@click.option(
    "--listen",
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    help="Where browsers of this machine reach the page; port 0 takes a free one.",
)
@click.option(
    "--url",
    metavar="URL",
    help="Where browsers reach it, if elsewhere: a published port of this machine, or https://.",
)
@click.option(
    "--sign-on",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Admit only what a sign-on's proxy passes on with this file's password; needs --url.",
)
@click.option(
    "--audit",
    envvar="HEDGEROW_AUDIT",
    default="",
    metavar="FILE|stdout|syslog",
    help="Where to write who submits, cancels and downloads what; also HEDGEROW_AUDIT.",
)
@connected()
def console(
    listen: str, url: str | None, sign_on: Path | None, audit: str, connection: Connection
) -> None:
    """Serve a page that shows the federation, submits jobs and watches them, as this operator.

    The address that is printed has a secret: its holder acts as you until the command ends.
    Behind a sign-on all whom it admits act as you.
    """
    from hedgerow.services.process import logs
    from hedgerow.services.process.imports import staying
    from hedgerow.services.process.trail import Trail

    trail = Trail(audit, "console")
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--listen takes HOST:PORT, received {listen!r}")
    if host not in LOOPBACK and url is None:
        raise click.UsageError(
            f"--listen {listen} is not on loopback ({', '.join(LOOPBACK)}): all who reach the "
            "page acts as you, and it has no TLS; --url names what is before it"
        )
    at = _reached(url) if url else None
    if sign_on is None:
        secret = secrets.token_urlsafe(24)
    elif at is None:
        raise click.UsageError("--sign-on needs --url, the address of the sign-on's proxy")
    else:
        secret = _password(sign_on)
        logs.configure(json=wants_json(), level="info")  # who signed in and changed what
    with staying():
        try:
            from hedgerow.coordinator.operator.console.app import make_app
            from hedgerow.services.rpc.http import HttpServer, listening
        except ModuleNotFoundError as error:
            raise FederationError(
                f"the console needs {error.name}: pip install 'hedgerow[console]'"
            ) from error
        app = make_app(
            connection.client(),
            f"{connection.identity} at {connection.coordinator}",
            secret,
            LOOPBACK if at is None or at.scheme == "http" else (str(at.hostname),),
            secure=at is not None and at.scheme == "https",
            signed_on=sign_on is not None,
            trail=trail,
            operator=_operator(connection) if audit else "",
        )
    # Pages that watch a job would keep it for ever.
    server = HttpServer(app, log_level="warning", timeout_graceful_shutdown=1)
    try:
        bound = listening(listen)
    except OSError as error:
        raise FederationError(
            f"--listen {listen} cannot be used ({error.strerror}); --listen {host}:0 takes a "
            "free port"
        ) from error
    with bound:
        address = url.rstrip("/") if url else f"http://{host}:{bound.getsockname()[1]}"
        if sign_on is None:
            address += f"/?secret={secret}"
        tell({"address": address}, address)
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[bound])


def _operator(connection: Connection) -> str:
    assert connection.identity
    paths = certificates.IdentityPaths.of(connection.identity)
    return certificates.subject_of(certificates.read(paths.certificate)).name


def _reached(url: str) -> SplitResult:
    """Return where browsers reach the console; refuses what would carry secrets in clear."""
    try:
        at = urlsplit(url)
        known = (
            bool(at.hostname) and (at.port or 1) and not (at.query or at.fragment or at.username)
        )
    except ValueError:
        known = False
    if not known or at.scheme not in ("http", "https") or at.path.strip("/"):
        raise click.UsageError(f"--url takes https://HOST[:PORT], received {url!r}")
    if at.scheme == "http" and at.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise click.UsageError(
            f"--url {url} has no TLS and is not on loopback: an eavesdropper would act as you"
        )
    return at


def _password(file: Path) -> str:
    found = file.read_text(encoding="utf-8").strip()
    if len(found) < SHORTEST:
        raise FederationError(
            f"--sign-on {file}: the password has {len(found)} characters, expected {SHORTEST} or "
            "more, as `openssl rand -hex 24` prints"
        )
    return found
