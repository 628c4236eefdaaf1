"""``hedgerow pki``: the federation's CA and everyone's certificates."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from hedgerow.coordinator.operator.commands import refusing
from hedgerow.coordinator.operator.commands.operate import connected
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.identity import authority, certificates
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.revocation import read_lists

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
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
    with refusing():
        authority.create_authority(folder, federation, time.time())
    click.echo(f"CA of federation {federation}: {folder / 'ca.crt'}; keep ca.key offline")


@pki.command()
@click.option("--federation", required=True, help="Name of the federation.")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True)
@click.option("--name", required=True, help="Name of the silo, operator or process.")
@click.option("--dir", "folder", type=FOLDER, required=True, help="Folder of the identity.")
def request(federation: str, role: str, name: str, folder: Path) -> None:
    """Make a key that stays in --dir, and a request (tls.csr) for the CA's owner."""
    with refusing():
        made = authority.create_request(folder, federation, Role(role), name)
    click.echo(
        f"send {made} to the owner of the CA; put the certificate beside it as tls.crt "
        "and the CA's as ca.crt"
    )


@pki.command()
@click.argument("request", type=FILE)
@click.option("--ca", "folder", type=FOLDER, required=True, help="Folder of the CA.")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True)
@click.option("--name", required=True, help="Who the request is from, as you know them.")
@click.option("--host", "hosts", multiple=True, help="DNS name or IP address of a server.")
@click.option("--days", type=float, default=authority.LIFETIME_DAYS[1], show_default=True)
@click.option("--out", type=FILE, help="Where to put the certificate; beside the request if not.")
def sign(
    request: Path,
    folder: Path,
    role: str,
    name: str,
    hosts: tuple[str, ...],
    days: float,
    out: Path | None,
) -> None:
    """Sign REQUEST: the role, name and hosts are those given here, never the request's."""
    target = out or request.with_suffix(".crt")
    with refusing():
        certificate = authority.sign_request(
            folder,
            certificates.read(request),
            Role(role),
            name,
            now=time.time(),
            days=days,
            hosts=hosts,
        )
        certificates.write(target, certificate)
        subject = certificates.subject_of(certificate)
    click.echo(f"{target}: {subject.uri}, until {_date(subject.not_after)}")


@pki.command()
@click.argument("who", nargs=-1, metavar="[NAME|ROLE/NAME|SERIAL|FILE]...")
@click.option("--ca", "folder", type=FOLDER, required=True, help="Folder of the CA.")
def revoke(who: tuple[str, ...], folder: Path) -> None:
    """Sign a new list of revoked certificates, ca.crl, with all that WHO has been issued.

    Put it beside the coordinator's ca.crt, or where its settings say; it takes effect within
    seconds and reaches every silo. Without WHO the list is only signed anew, for silos that limit
    its age. Sign a new certificate for a holder after its old ones are revoked.
    """
    with refusing():
        serials = [serial for one in who for serial in _serials(folder, one)]
        made = authority.revoke(folder, serials, time.time())
        (known,) = read_lists(
            certificates.read(made), certificates.read(folder / "ca.crt")
        ).values()
    click.echo(f"{made}: number {known.number}, {len(known.serials)} certificates revoked")


@pki.command()
@connected
@click.option("--out", type=FILE, help="Where to put the list.")
def revoked(address: str, identity: Path, server_name: str | None, out: Path | None) -> None:
    """Show the list of revoked certificates that the coordinator has, checked by the CA."""
    with refusing():
        pem = client_for(address, identity, server_name).revocations()
        if not pem:
            click.echo("the coordinator has no list of revoked certificates")
            return
        roots = certificates.read(IdentityPaths.of(identity).roots)
        for known in read_lists(pem, roots).values():
            click.echo(f"number {known.number}, signed {_date(known.issued)}")
            for serial in sorted(known.serials):
                click.echo(f"{serial:x}")
        if out is not None:
            certificates.write(out, pem)


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
@click.option("--dir", "folder", type=FOLDER, required=True, help="Folder of the identity.")
@click.option("--new-key", is_flag=True, help="Make a new key as well.")
@click.option("--certificate", type=FILE, help="The CA's answer: check it and put it into use.")
def renew(folder: Path, new_key: bool, certificate: Path | None) -> None:
    """Ask for a new certificate, or with --certificate put it into use; servers reload it."""
    paths = IdentityPaths.of(folder)
    with refusing():
        if certificate is not None:
            subject = authority.install(folder, certificates.read(certificate), time.time())
            click.echo(f"{subject.uri}: in use until {_date(subject.not_after)}")
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
    click.echo(
        f"send {made} to the owner of the CA, who runs: hedgerow pki sign tls.csr --ca DIR "
        f"--role {subject.role} --name {subject.name}{asks}"
    )


@pki.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(path: Path, as_json: bool) -> None:
    """Tell whom a certificate (or the one in a folder) names, and until when.

    Exit code 1 when it is expired or, in a folder, does not fit its key or CA.
    """
    now = time.time()
    folder = path if path.is_dir() else None
    file = IdentityPaths.of(path).certificate if folder else path
    with refusing():
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
    if as_json:
        click.echo(json.dumps(facts))
    else:
        table = Table(show_header=False)
        for name, value in facts.items():
            text = ", ".join(value) if isinstance(value, list) else str(value)
            table.add_row(name.replace("_", " "), text or "–")
        Console().print(table)
    if problem:
        raise SystemExit(1)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
