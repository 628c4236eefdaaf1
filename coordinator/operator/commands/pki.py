"""``hedgerow pki``: the federation's CA and everyone's certificates."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from pathlib import Path
from typing import Any

import click

from hedgerow.coordinator.operator import joining
from hedgerow.coordinator.operator.commands.options import (
    FILE,
    FOLDER,
    CoordinatorOptions,
    connected,
)
from hedgerow.services.identity import authority, certificates
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.enrolment import Token
from hedgerow.services.identity.revocation import read_lists
from hedgerow.services.process.terminal import group, listing, tell

CA = click.option("--ca", "folder", type=FOLDER, required=True, help="Folder of the CA.")
DAYS = click.option("--days", type=float, default=authority.LIFETIME_DAYS[1], show_default=True)
IDENTITY = click.option(
    "--dir", "folder", type=FOLDER, required=True, help="Folder of the identity."
)
ROLES = click.Choice([role.value for role in Role])


@group()
def pki() -> None:
    """Make and renew certificates.

    The CA's owner runs `init` and `sign` on a machine that is not the coordinator. Everyone else
    runs `request` where the key is to stay, sends the request, and gets the certificate back.
    """


@pki.command()
@click.option("--federation", required=True, help="Name of the federation.")
@click.option("--dir", "folder", type=FOLDER, required=True, help="Folder of the CA.")
def init(federation: str, folder: Path) -> None:
    """Make the federation's CA: ca.key, to be kept offline, and ca.crt, for everyone."""
    authority.create_authority(folder, federation, time.time())
    root = folder / "ca.crt"
    tell({"ca": str(root)}, f"CA of federation {federation}: {root}; keep ca.key offline")


@pki.command()
@click.option("--federation", required=True, help="Name of the federation.")
@click.option("--role", type=ROLES, required=True)
@click.option("--name", required=True, help="Name of the silo, operator or process.")
@IDENTITY
def request(federation: str, role: str, name: str, folder: Path) -> None:
    """Make a key that stays in --dir, and a request (tls.csr) for the CA's owner."""
    made = authority.create_request(folder, federation, Role(role), name)
    tell(
        {"request": str(made)},
        f"send {made} to the owner of the CA; put the certificate beside it as tls.crt "
        "and the CA's as ca.crt",
    )


@pki.command()
@click.argument("requests", metavar="REQUEST...", type=FILE, nargs=-1, required=True)
@CA
@click.option("--role", type=ROLES, help="Of a tls.csr.")
@click.option("--name", help="Who a tls.csr is from, as you know them.")
@click.option("--host", "hosts", multiple=True, help="DNS name or IP address of a server.")
@DAYS
@click.option("--out", type=FILE, help="Where to put the certificate; beside the request if not.")
@click.option(
    "--coordinator",
    "address",
    default="",
    metavar="HOST:PORT",
    help="Of bundles: the coordinator's address, if not that of the coordinator signed here.",
)
@click.option("--yes", is_flag=True, help="Sign bundles without asking: you have compared them.")
def sign(
    requests: tuple[Path, ...],
    folder: Path,
    role: str | None,
    name: str | None,
    hosts: tuple[str, ...],
    days: float,
    out: Path | None,
    address: str,
    yes: bool,
) -> None:
    """Sign requests; what comes out holds no secret and is sent back.

    A REQUEST of `hedgerow init` becomes a bundle beside it, after you have confirmed who asks and
    for what. A REQUEST of `hedgerow pki request` (tls.csr) needs --role and --name, as you know
    them, and --host for a server: never the request's own.
    """
    if all(certificates.read(request).lstrip().startswith(b"{") for request in requests):
        if role or name or hosts or out:
            raise click.UsageError("--role, --name, --host and --out are for a tls.csr")
        _sign_bundles(requests, folder, address, days, yes)
        return
    if len(requests) > 1 or not role or not name:
        raise click.UsageError("a tls.csr is signed by itself, with --role and --name")
    _sign_one(requests[0], folder, Role(role), name, hosts, days, out)


def _confirm(request: Path) -> None:
    try:
        sure = click.confirm("Is this who you know, with this SHA-256?", err=True)
    except click.Abort:  # or there is nobody to answer
        sure = False
    if not sure:
        raise click.ClickException(
            f"{request} is not signed: answer y, or give --yes after comparing"
        )


def _sign_bundles(
    requests: tuple[Path, ...], folder: Path, address: str, days: float, yes: bool
) -> None:
    made = []
    for path in requests:
        found = joining.read_request(path)
        click.echo(f"{path}: SHA-256 {joining.fingerprint(certificates.read(path))}", err=True)
        for one in found.asked:
            at = f" at {', '.join(one.hosts)}" if one.hosts else ""
            click.echo(f"  {one.role} {found.name} of {found.federation}{at}", err=True)
        if found.address:
            click.echo(f"  all bundles will name the coordinator {found.address}", err=True)
        if not yes:
            _confirm(path)
        bundle = joining.sign(folder, found, address, time.time(), days)
        stem = path.name.removesuffix(joining.REQUEST).removesuffix(".json")
        target = path.with_name(stem + joining.BUNDLE)
        joining.write_document(target, bundle)
        made.append(str(target))
    root = joining.fingerprint(certificates.read(folder / "ca.crt"))
    shown = [f"{target}: send it back; hedgerow init accept puts it into use" for target in made]
    shown.append(f"SHA-256 of the CA, to be told by another way: {root}")
    tell({"bundles": made, "ca_sha256": root}, "\n".join(shown))


@pki.command()
@click.argument("name")
@click.option(
    "--role", type=click.Choice([role.value for role in joining.PLACES]), default=Role.SILO.value,
    show_default=True,
)  # fmt: skip
@CA
@click.option("--valid", default="30m", show_default=True, help="For how long: 90s, 30m, 2h.")
@click.option(
    "--listen", metavar="HOST:PORT",
    help="Where to wait; this machine's address on the way to the coordinator, at 7444 or a free "
    "port, if not given.",
)  # fmt: skip
@click.option("--announce", metavar="HOST:PORT", help="What NAME dials, if not --listen itself.")
@DAYS
@click.option(
    "--coordinator", default="", metavar="HOST:PORT",
    help="The coordinator's address, if not that of the coordinator signed here.",
)  # fmt: skip
def invite(
    name: str,
    role: str,
    folder: Path,
    valid: str,
    listen: str | None,
    announce: str | None,
    days: float,
    coordinator: str,
) -> None:
    """Print a token with which NAME joins by `hedgerow join`, and wait until it has.

    Waits here, for one enrolment: it ends with that, after --valid, after too many wrong tries, or
    by Ctrl-C. The first to use the token becomes NAME: send it where nobody else reads it.
    Standard output has the token alone.
    """
    from hedgerow.coordinator.operator import inviting

    try:
        seconds = inviting.seconds_of(valid)
    except ValueError as error:
        raise click.UsageError(f"--valid: {error}") from error
    dialled = coordinator or joining.coordinator_of(folder)
    bound, announced = inviting.place_of(listen, announce, dialled)

    def note(line: str) -> None:
        click.echo(line, err=True)

    def tell_token(token: Token) -> None:
        until = _date(time.time() + seconds)
        data = " --data FILE" if role == Role.SILO else ""
        note(f"open at {token.address} until {until}; {name} runs: hedgerow join TOKEN{data}")
        shown = {"token": token.write(), "address": token.address, "until": until}
        tell(shown, token.write())
        sys.stdout.flush()

    invitation = inviting.invitation(folder, Role(role), name, seconds, coordinator, days, note)
    asyncio.run(inviting.serve(invitation, seconds, bound, announced, tell_token))


def _sign_one(
    request: Path,
    folder: Path,
    role: Role,
    name: str,
    hosts: tuple[str, ...],
    days: float,
    out: Path | None,
) -> None:
    target = out or request.with_suffix(".crt")
    certificate = joining.sign_one(
        folder, certificates.read(request), role, name, now=time.time(), days=days, hosts=hosts
    )
    certificates.write(target, certificate)
    subject = certificates.subject_of(certificate)
    until = _date(subject.not_after)
    tell(
        {"certificate": str(target), "uri": subject.uri, "not_after": until},
        f"{target}: {subject.uri}, until {until}",
    )


@pki.command()
@click.argument("who", nargs=-1, metavar="[NAME|ROLE/NAME|SERIAL|FILE]...")
@CA
def revoke(who: tuple[str, ...], folder: Path) -> None:
    """Sign a new list of revoked certificates, ca.crl, with all that WHO has been issued.

    Put it beside the coordinator's ca.crt, or where its settings say; it takes effect within
    seconds and reaches every silo. Without WHO the list is only signed again, for silos that limit
    its age. Sign a new certificate for a holder after its old ones are revoked.
    """
    serials = [serial for one in who for serial in _serials(folder, one)]
    named = [f"{serial:x}" for serial in serials]
    acting = joining.trail_of(folder).action
    with acting("certificate-revoke", joining.owner(), serials=named, holders=list(who)):
        made = authority.revoke(folder, serials, time.time())
    (known,) = read_lists(certificates.read(made), certificates.read(folder / "ca.crt")).values()
    tell(
        {"list": str(made), "number": known.number, "revoked": len(known.serials)},
        f"{made}: number {known.number}, {len(known.serials)} certificates revoked",
    )


@pki.command()
@connected()
@click.option("--out", type=FILE, help="Where to put the list.")
def revoked(connection: CoordinatorOptions, out: Path | None) -> None:
    """Show the list of revoked certificates that the coordinator has, checked by the CA."""
    pem = connection.client().revocations()
    assert connection.identity
    roots = certificates.read(IdentityPaths.of(connection.identity).roots)
    lists: list[dict[str, Any]] = [
        {
            "number": known.number,
            "signed": _date(known.issued),
            "serials": [f"{serial:x}" for serial in sorted(known.serials)],
        }
        for known in (read_lists(pem, roots).values() if pem else ())
    ]
    if out is not None and pem:
        certificates.write(out, pem)

    def show() -> None:
        if not lists:
            click.echo("the coordinator has no list of revoked certificates")
        for known in lists:
            click.echo(f"number {known['number']}, signed {known['signed']}")
            for serial in known["serials"]:
                click.echo(serial)

    tell(lists, show)


def _serials(folder: Path, who: str) -> tuple[int, ...]:
    found = authority.issued_to(folder, who)
    if found:
        return found
    if Path(who).is_file():
        return (certificates.serial_of(certificates.read(Path(who))),)
    if re.fullmatch("(0x)?[0-9a-fA-F]{8,40}", who):
        return (int(who, 16),)
    raise certificates.IdentityUnusable(
        f"{who} is no name in {folder / authority.ISSUED}, no file, and no serial number in hex "
        "(hedgerow pki show prints it)"
    )


@pki.command()
@IDENTITY
@click.option("--new-key", is_flag=True, help="Make a new key as well.")
@click.option("--certificate", type=FILE, help="The CA's answer: check it and put it into use.")
def renew(folder: Path, new_key: bool, certificate: Path | None) -> None:
    """Ask for a new certificate, or with --certificate put it into use; servers reload it."""
    paths = IdentityPaths.of(folder)
    if certificate is not None:
        subject = authority.install(folder, certificates.read(certificate), time.time())
        until = _date(subject.not_after)
        tell({"uri": subject.uri, "not_after": until}, f"{subject.uri}: in use until {until}")
        return
    subject = certificates.subject_of(certificates.read(paths.certificate))
    made = authority.create_request(
        folder,
        subject.federation,
        subject.role,
        subject.name,
        key_name="tls.key.next" if new_key else "tls.key",
    )
    hosts = certificates.hosts_of(certificates.read(paths.certificate))
    asks = "".join(f" --host {host}" for host in hosts)
    tell(
        {"request": str(made), "role": subject.role, "name": subject.name, "hosts": hosts},
        f"send {made} to the owner of the CA, who runs: hedgerow pki sign tls.csr --ca DIR "
        f"--role {subject.role} --name {subject.name}{asks}",
    )


@pki.command()
@click.argument("key", type=FILE)
@click.option("--new-file", type=FILE, help="File of the new passphrase; asked for if not given.")
@click.option("--remove", is_flag=True, help="Store the key in clear.")
def passphrase(key: Path, new_file: Path | None, remove: bool) -> None:
    """Encrypt KEY (tls.key or ca.key), or give it another passphrase.

    The passphrase that it has comes from HEDGEROW_KEY_PASSPHRASE_FILE or HEDGEROW_KEY_PASSPHRASE,
    or is asked for. Where one of them is set, keys are made encrypted in the first place.
    """
    if remove and new_file:
        raise click.UsageError("--remove or --new-file, not both")
    certificates.load_key(key)
    new: bytes | None = None
    if new_file is not None:
        new = certificates.read(new_file).removesuffix(b"\n").removesuffix(b"\r")
    elif not remove:
        typed = click.prompt("New passphrase", hide_input=True, confirmation_prompt=True, err=True)
        new = str(typed).encode()
    certificates.change_passphrase(key, new)
    said = "in clear" if new is None else "encrypted"
    tell({"key": str(key), "encrypted": new is not None}, f"{key}: {said}")


@pki.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
def show(path: Path) -> None:
    """Tell whom a certificate (or the one in a folder) names, and until when.

    Exit code 1 when it is expired or, in a folder, does not fit its key or CA.
    """
    now = time.time()
    folder = path if path.is_dir() else None
    file = IdentityPaths.of(path).certificate if folder else path
    pem = certificates.read(file)
    subject = certificates.subject_of(pem)
    hosts = certificates.hosts_of(pem)
    problem = "expired" if now > subject.not_after else ""
    if folder is not None:
        try:
            certificates.load_identity(IdentityPaths.of(folder), now)
        except certificates.IdentityUnusable as error:
            problem = str(error)
    facts = {
        "file": str(file),
        "uri": subject.uri,
        "serial": f"{certificates.serial_of(pem):x}",
        "federation": subject.federation,
        "role": subject.role.value,
        "name": subject.name,
        "hosts": list(hosts),
        "not_after": _date(subject.not_after),
        "days_left": round((subject.not_after - now) / 86400, 1),
        "problem": problem,
    }
    rows = [
        (name.replace("_", " "), ", ".join(value) if isinstance(value, list) else value)
        for name, value in facts.items()
    ]
    tell(facts, lambda: listing(("what", "value"), rows))
    if problem:
        raise SystemExit(1)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
