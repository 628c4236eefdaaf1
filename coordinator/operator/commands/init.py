"""``hedgerow init`` and ``hedgerow run``: an organisation's folder, from nothing to ready."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import click

from hedgerow.coordinator.operator import federations, joining
from hedgerow.coordinator.operator.joining import BUNDLE, REQUEST, JoinRequest
from hedgerow.coordinator.operator.processes import SETTINGS, kind_of, settings_files
from hedgerow.services.identity import certificates
from hedgerow.services.identity.enrolment import Bundle, Token
from hedgerow.services.process.terminal import Refused, command, group, tell, wants_json

FOLDER = click.Path(file_okay=False, path_type=Path, resolve_path=True)
STOP_SECONDS = 15.0
"""How long processes may take to end before they are killed."""
federation_option = click.option("--federation", required=True, help="Name of the federation.")
min_silos_option = click.option(
    "--min-silos",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Of the policy: least silos in a job. Sums of two hide nothing from the other.",
)


@group()
def init() -> None:
    """Make the folder of a process or an operator: keys, a request, settings, service files.

    Send the request to the owner of the CA, who runs `hedgerow pki sign`; put the bundle that
    comes back into use with `hedgerow init accept`. Private keys never leave the folder.
    """


@init.command()
@federation_option
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    help="DNS name or IP address under which silos and operators dial it; the first is announced.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="7443 if free, else a free one.")
@click.option("--dir", "folder", type=FOLDER, default="coordinator", show_default=True)
def coordinator(federation: str, hosts: tuple[str, ...], port: int | None, folder: Path) -> None:
    """Make a coordinator's folder."""
    _tell(folder, joining.make_coordinator(folder, federation, hosts, port or 0))


@init.command()
@federation_option
@click.option("--name", required=True, help="Name of the silo.")
@click.option("--data", required=True, metavar="FILE", help="The silo's table, or an fsspec URL.")
@min_silos_option
@click.option("--dir", "folder", type=FOLDER, help="The silo's name if not given.")
def silo(federation: str, name: str, data: str, min_silos: int, folder: Path | None) -> None:
    """Make a silo's folder: an agent, and its crypto process."""
    place = folder or Path(name).absolute()
    _tell(place, joining.make_silo(place, federation, name, data, min_silos))


@init.command()
@federation_option
@click.option("--name", required=True, help="Name of the operator.")
@click.option("--dir", "folder", type=FOLDER, help="The operator's name if not given.")
def operator(federation: str, name: str, folder: Path | None) -> None:
    """Make an operator's folder."""
    place = folder or Path(name).absolute()
    _tell(place, joining.make_operator(place, federation, name))


def _tell(folder: Path, made: JoinRequest) -> None:
    file = folder / f"{made.name}{REQUEST}"
    digest = joining.fingerprint(certificates.read(file))
    ports = {
        f"{path.stem} {key}": value
        for path in sorted(folder.glob("*.toml"))
        for key, value in joining.addresses(path).items()
    }
    lines = [f"{name}: {address}" for name, address in ports.items()]
    lines += [
        f"send {file} to the owner of the CA; tell them its SHA-256 by another way:",
        digest,
        f"then: hedgerow init accept {made.name}{BUNDLE} --dir {folder}",
    ]
    tell(
        {"folder": str(folder), "request": str(file), "sha256": digest, "addresses": ports},
        "\n".join(lines),
    )


@init.command()
@click.argument("bundle", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--dir", "folder", type=FOLDER, help="The name in the bundle if not given.")
@click.option("--ca-sha256", default="", help="SHA-256 that ca.crt must have; the CA's owner says.")
def accept(bundle: Path, folder: Path | None, ca_sha256: str) -> None:
    """Put BUNDLE into use: certificates beside their keys, and the coordinator's address.

    An operator's folder becomes the default of all commands, as `hedgerow use` would make it.
    """
    found = joining.read_document(bundle, Bundle)
    digest = joining.fingerprint(found.ca.encode())
    if ca_sha256 and digest != ca_sha256.lower():
        raise Refused(f"{bundle}: the CA's SHA-256 is {digest}, {ca_sha256} was expected")
    place = folder or Path(found.name).absolute()
    joining.accept(place, found, time.time())
    _tell_complete(place, found, f"SHA-256 of the CA: {digest}; compare it with its owner")


def _tell_complete(place: Path, found: Bundle, trusted: str) -> None:
    """Say what a complete folder is for; an operator's becomes the default of all commands."""
    if settings := sorted(place.glob("*.toml")):
        kinds = ", ".join(path.stem for path in settings)
        after = f"start ({kinds}): hedgerow run {place}"
    else:
        name, known = found.federation, federations.read()[1]
        here = federations.KnownFederation(found.coordinator, place / "identity")
        federations.write(name, {**known, name: here})
        after = f"commands now use {name}: try hedgerow doctor"
    digest = joining.fingerprint(found.ca.encode())
    tell(
        {"folder": str(place), "coordinator": found.coordinator, "ca_sha256": digest},
        f"{place}: {found.name} of {found.federation}, coordinator {found.coordinator}\n"
        f"{trusted}\n{after}",
    )


@command()
@click.argument("token")
@click.option("--data", metavar="FILE", help="Of a silo: its table, or an fsspec URL.")
@min_silos_option
@click.option("--dir", "folder", type=FOLDER, help="The name in the token if not given.")
def join(token: str, data: str | None, min_silos: int, folder: Path | None) -> None:
    """Make and complete the folder that TOKEN invites, as `hedgerow pki invite` prints it.

    Does what `init`, `pki sign` and `init accept` do: keys are made here and stay, the owner's
    machine signs. `-` reads the token from standard input, where other users of this machine do
    not see it. Can be repeated when it was interrupted.
    """
    from hedgerow.coordinator.operator import inviting

    found = Token.read(sys.stdin.readline() if token == "-" else token)  # noqa: S105
    member = found.member
    if (member.role is certificates.Role.SILO) != (data is not None):
        needs = "needs --data, its table" if data is None else "has no table: leave --data out"
        raise click.UsageError(f"the token is for {member.role} {member.name}, which {needs}")
    place = folder or Path(member.name).absolute()
    bundle, untold = inviting.join(found, place, data or "", min_silos)
    said = f"signed at {found.address}, whose certificate the token names"
    if untold:
        said += f"\ntell the owner of the CA that all is in its place, they wait for it ({untold})"
    _tell_complete(place, bundle, said)


@command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path, resolve_path=True))
def run(folder: Path) -> None:
    """Run the processes of FOLDER, as `hedgerow init` makes it, until one ends.

    Ctrl-C and SIGTERM end all of them, SIGUSR1 is passed on. `--json` makes their logs JSON.
    """
    files = {kind_of(path): path for path in settings_files(folder)}
    ordered = [kind for kind in ("coordinator", "crypto", "agent") if kind in files]
    assert set(ordered) == files.keys() <= SETTINGS.keys()
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        for process in started:
            process.terminate()

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in started:
            process.send_signal(number)

    started: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGUSR1, pass_on)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    json_logs = ["--json"] if wants_json() else []
    for kind in ordered if not stopping else ():
        words = [sys.executable, "-m", "hedgerow", kind, "--config", str(files[kind]), *json_logs]
        # A group of its own: Ctrl-C reaches this process, which ends the others in order.
        started.append(subprocess.Popen(words, cwd=folder, process_group=0))
    codes: list[int | None] = [None]
    while not stopping and all(code is None for code in codes):
        time.sleep(0.2)
        codes = [process.poll() for process in started]
    failed = next((code for code in codes if code is not None), 0)
    for process in started:
        process.terminate()
    for process in started:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if not stopping:
        raise click.exceptions.Exit(failed or 1)
