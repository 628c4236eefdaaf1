"""``hedgerow console``: the operator's page on this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

import click

from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.operator.commands.options import CoordinatorOptions, connected
from hedgerow.services.identity import certificates
from hedgerow.services.process.terminal import command, tell, wants_json

if TYPE_CHECKING:
    from starlette.types import ASGIApp

LOOPBACK_IPS = ("127.0.0.1", "::1")
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
    "--users",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Each user who signs in acts by the identity in DIR/USER; needs --sign-on.",
)
@click.option(
    "--user-header",
    default="",
    metavar="NAME",
    help="Header in which the sign-on says who signed in; the basic authentication's name if not.",
)
@click.option(
    "--user-by",
    default="",
    metavar="NAME",
    help="Who reads the user: basic, header, or an installed package's authenticator.",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Address from which the sign-on connects, again for more; with --users loopback if not.",
)
@click.option(
    "--audit",
    envvar="HEDGEROW_AUDIT",
    default="",
    metavar="FILE|stdout|syslog",
    help="Where to write who submits, cancels and downloads what; also HEDGEROW_AUDIT.",
)
@connected(required=False)
def console(
    listen: str,
    url: str | None,
    sign_on: Path | None,
    users: Path | None,
    user_header: str,
    user_by: str,
    proxies: tuple[str, ...],
    audit: str,
    connection: CoordinatorOptions,
) -> None:
    """Serve a page that shows the federation, submits jobs and watches them, as this operator.

    The address that is printed has a secret: its holder acts as you until the command ends.
    Behind a sign-on all whom it admits act as you, or with --users by certificates of their own.
    """
    from hedgerow.services.process import logs
    from hedgerow.services.process.imports import staying
    from hedgerow.services.process.trail import Trail

    trail = Trail(audit, "console")
    if users is not None:  # nobody acts by one of ours
        connection = replace(connection, identity=users)
    connection.needed()
    if (users or user_header or user_by or proxies) and sign_on is None:
        raise click.UsageError("--users, --user-header, --user-by and --proxy need --sign-on")
    user_by = user_by or ("header" if user_header else "basic")
    if (user_by == "header") > bool(user_header):
        raise click.UsageError("--user-by header needs --user-header, its name")
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
            from hedgerow.coordinator.operator.console.app import PagesOfUsers, make_app
            from hedgerow.coordinator.operator.console.guard import (
                AUTHENTICATORS,
                Authenticator,
                Guard,
                SignOn,
            )
            from hedgerow.services.rpc.http import HttpServer, listening
        except ModuleNotFoundError as error:
            raise FederationError(
                f"the console needs {error.name}: pip install 'hedgerow[console]'"
            ) from error

        def pages(identity: Path, own: certificates.Subject) -> ASGIApp:
            client = replace(connection, identity=identity).client()
            return make_app(client, own, str(connection.coordinator), trail, warm=users is None)

        of_users = None if users is None else PagesOfUsers(users, pages)
        own = None if users is not None else _subject(connection)
        addresses = frozenset(map(_address, proxies or (LOOPBACK_IPS if users else ())))
        by = AUTHENTICATORS.load(user_by, Authenticator)
        app = Guard(
            None if own is None else pages(Path(str(connection.identity)), own),
            secret,
            LOOPBACK if at is None or at.scheme == "http" else (str(at.hostname),),
            secure=at is not None and at.scheme == "https",
            sign_on=SignOn(by, addresses, user_header, of_users) if sign_on else None,
            trail=trail,
            operator="" if own is None else own.name,
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


def _subject(connection: CoordinatorOptions) -> certificates.Subject:
    assert connection.identity
    paths = certificates.IdentityPaths.of(connection.identity)
    return certificates.subject_of(certificates.read(paths.certificate))


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise click.UsageError(f"--proxy takes an IP address, received {text!r}") from None


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
