"""Folders of processes as ``hedgerow init`` makes them: requests that leave, bundles that return.

A folder has private keys, which stay in it; one request file, which the owner of the federation's
CA signs; and settings and service files, which the bundle that comes back completes.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import pwd
import random
import shlex
import socket
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from hedgerow.boosting.checks import read_as
from hedgerow.boosting.errors import DataError
from hedgerow.coordinator.operator.processes import settings_of
from hedgerow.crypto.durable import write_atomically
from hedgerow.services.identity import authority, certificates
from hedgerow.services.identity.certificates import IdentityPaths, IdentityUnusable, Role
from hedgerow.services.identity.enrolment import ADDRESS, Bundle, SignedPlace
from hedgerow.services.process.settings import commented
from hedgerow.services.process.trail import NOWHERE, Actor, Trail

REQUEST, BUNDLE = ".request.json", ".bundle.json"
"""Endings of the files that are sent: what is asked of the CA's owner, and the answer."""
MOST_BYTES = 1 << 18
"""Longest request or bundle that is read."""
COORDINATOR = "coordinator.json"
"""File of a CA: address and name of the coordinator that it has signed, for all bundles."""
TRAIL = "audit.jsonl"
"""File of a CA: who has signed and revoked what."""
PORT = 7443
Document = TypeVar("Document")
_BELOW_EPHEMERAL = range(20_000, 32_000)
"""Ports that the system gives to nobody by itself."""
PLACES: dict[Role, tuple[tuple[str, Role, tuple[str, ...]], ...]] = {
    Role.SILO: (("agent", Role.SILO, ()), ("crypto", Role.CRYPTO, ("localhost", "127.0.0.1"))),
    Role.OPERATOR: (("identity", Role.OPERATOR, ()),),
    Role.VIEWER: (("identity", Role.VIEWER, ()),),
}
"""Folders of a member's identities; role and hosts of each one's certificate."""


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """One certificate that a folder needs."""

    place: str
    """Folder of the identity, below the process' folder."""
    role: str
    request: str
    """PEM; it holds no secret."""
    hosts: list[str]
    """DNS names and addresses under which a server is dialled."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a folder asks of the owner of the CA; ``address`` is a coordinator's own."""

    federation: str
    name: str
    asked: list[CertificateRequest]
    address: str = ""


def free_port(host: str, preferred: int = 0) -> int:
    """Return a port that nobody listens on: the preferred one, or one chosen at random."""
    address = host or "0.0.0.0"  # noqa: S104
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in (preferred, *random.sample(_BELOW_EPHEMERAL, 100)):
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            try:
                tried.bind((address, port))
            except OSError:
                continue
            if port:
                return port
    raise IdentityUnusable(f"{address}: no free port was found, say which with an option")


def make_coordinator(folder: Path, federation: str, hosts: Sequence[str], port: int) -> JoinRequest:
    """Write a coordinator's folder; ``hosts`` are the names under which silos dial it."""
    listen = port or free_port("0.0.0.0", PORT)  # noqa: S104
    given = {
        "listen": f"0.0.0.0:{listen}",
        "identity": folder / "identity",
        "database": f"sqlite:///{folder / 'hedgerow.db'}",
        "artefacts": str(folder / "artefacts"),
        "metrics": f"127.0.0.1:{free_port('127.0.0.1')}",
    }
    _write_settings(folder, "coordinator", given)
    _write_services(folder, f"{federation}-coordinator", ("coordinator",))
    asked = _ask(folder, federation, "coordinator", ("identity", Role.COORDINATOR, hosts))
    return _request(folder, federation, "coordinator", [asked], f"{hosts[0]}:{listen}")


def make_silo(folder: Path, federation: str, name: str, data: str, min_silos: int) -> JoinRequest:
    """Write a silo's folder: an agent, and its crypto process on the loopback address."""
    crypto = f"127.0.0.1:{free_port('127.0.0.1')}"
    metrics = [f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2)]
    keys = {
        "listen": crypto,
        "identity": folder / "crypto",
        "silo": name,
        "state": folder / "keys",
        "metrics": metrics[0],
    }
    _write_settings(folder, "crypto", keys)
    agent = {
        "coordinator": "",
        "identity": folder / "agent",
        "state": folder / "state",
        "metrics": metrics[1],
        "crypto": crypto,
        "data.path": location(data),
        "policy.min_silos": min_silos,
    }
    _write_settings(folder, "agent", agent)
    _write_services(folder, f"{federation}-{name}", ("crypto", "agent"), data)
    asked = [_ask(folder, federation, name, one) for one in PLACES[Role.SILO]]
    return _request(folder, federation, name, asked)


def location(data: str) -> str:
    """Return a table's fsspec URL as it is, or its path from the root."""
    return data if "://" in data else str(Path(data).absolute())


def make_operator(folder: Path, federation: str, name: str) -> JoinRequest:
    """Write an operator's folder."""
    asked = [_ask(folder, federation, name, one) for one in PLACES[Role.OPERATOR]]
    return _request(folder, federation, name, asked)


def _ask(
    folder: Path, federation: str, name: str, what: tuple[str, Role, Sequence[str]]
) -> CertificateRequest:
    place, role, hosts = what
    (folder / place).mkdir(parents=True, exist_ok=True, mode=0o700)
    made = authority.create_request(folder / place, federation, role, name)
    return CertificateRequest(place, role.value, made.read_text(), list(hosts))


def _request(
    folder: Path, federation: str, name: str, asked: list[CertificateRequest], address: str = ""
) -> JoinRequest:
    made = JoinRequest(federation, name, asked, address)
    write_document(folder / f"{name}{REQUEST}", made)
    return made


def write_document(path: Path, value: JoinRequest | Bundle) -> None:
    """Write a request, or a bundle beside it."""
    text = json.dumps(asdict(value), indent=1) + "\n"
    write_atomically(path, text.encode(), mode=0o644)


def read_document(path: Path, kind: type[Document]) -> Document:
    """Return a request or a bundle; raises IdentityUnusable where it is none."""
    data = certificates.read(path)
    try:
        if len(data) > MOST_BYTES:
            raise DataError(f"at most {MOST_BYTES} bytes are expected")
        found: Document = read_as(kind, json.loads(data))
        return found
    except (ValueError, DataError, RecursionError) as error:
        raise IdentityUnusable(f"{path} is no {kind.__name__} of hedgerow init: {error}") from error


def read_request(path: Path) -> JoinRequest:
    """Return a request file; raises IdentityUnusable."""
    found = read_document(path, JoinRequest)
    certificates.check_name("federation", found.federation)
    certificates.check_name("name", found.name)
    for one in found.asked:
        if one.role not in list(Role):
            raise IdentityUnusable(f"{path}: {one.role!r} is no role of a federation")
    # They are shown to the person who signs, whose terminal would obey control characters.
    hosts = [host for one in found.asked for host in one.hosts]
    for host in [*hosts, *filter(None, [found.address])]:
        if not ADDRESS.fullmatch(host):
            raise IdentityUnusable(f"{path}: {host[:80]!a} is no host or address")
    if found.address and Role.COORDINATOR not in [one.role for one in found.asked]:
        raise IdentityUnusable(f"{path}: the request of a coordinator alone has its address")
    return found


def fingerprint(data: bytes) -> str:
    """Return what `sha256sum` prints of a file, to be compared over another channel."""
    return hashlib.sha256(data).hexdigest()


def sign(ca: Path, request: JoinRequest, address: str, now: float, days: float) -> Bundle:
    """Sign all that a request asks for, as its reader has confirmed.

    Parameters
    ----------
    ca : Path
        Folder of the CA, which remembers the coordinator's address.
    address : str
        The coordinator's, ``HOST:PORT``; the one that is remembered if empty.
    """
    root = certificates.read(ca / "ca.crt")
    ours = certificates.federation_of(certificates.parse(root, str(ca / "ca.crt"))[0])
    if request.federation != ours:
        raise IdentityUnusable(
            f"the request is for federation {request.federation}, the CA of {ours}"
        )
    told = address or request.address
    address = told or coordinator_of(ca)
    signed = [
        SignedPlace(
            one.place,
            sign_one(
                ca,
                one.request.encode(),
                Role(one.role),
                request.name,
                now=now,
                days=days,
                hosts=one.hosts,
            ).decode(),
        )
        for one in request.asked
    ]
    if told:
        write_atomically(ca / COORDINATOR, json.dumps({"address": told}).encode())
    return Bundle(request.federation, request.name, root.decode(), address, signed)


def sign_one(ca: Path, request: bytes, role: Role, name: str, **given: Any) -> bytes:
    """Sign a request as :func:`~hedgerow.services.identity.authority.sign_request` does, on record.

    Raises
    ------
    TrailUnwritable
        Nothing is signed.
    """
    about = {"holder": f"{role.value}/{name}", "hosts": list(given.get("hosts", ()))}
    with trail_of(ca).action("certificate-sign", owner(), **about) as fields:
        made = authority.sign_request(ca, request, role, name, **given)
        fields["hedgerow.serials"] = [f"{certificates.serial_of(made):x}"]
    return made


def trail_of(ca: Path) -> Trail:
    """Return the audit trail of the CA in a folder: there, or where ``HEDGEROW_AUDIT`` says.

    Raises
    ------
    TrailUnwritable, LedgerBroken
    """
    if not (ca / "ca.key").exists():  # where no CA is, nothing is signed
        return NOWHERE
    return Trail(os.environ.get("HEDGEROW_AUDIT") or str(ca / TRAIL), "ca")


def owner() -> Actor:
    """Return who uses the CA: the user of the system, for no certificate says it."""
    try:
        return Actor(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        return Actor(str(os.getuid()))


def coordinator_of(ca: Path) -> str:
    """Return the address of the coordinator that a CA has signed, ``HOST:PORT``.

    Raises
    ------
    IdentityUnusable
        It has signed none.
    """
    known = ca / COORDINATOR
    if not known.exists():
        raise IdentityUnusable(
            f"{ca} has signed no coordinator yet: sign its request first, or give --coordinator"
        )
    return str(json.loads(certificates.read(known))["address"])


def accept(folder: Path, bundle: Bundle, now: float) -> None:
    """Put a bundle into use: certificates beside their keys, the coordinator's address.

    Raises
    ------
    IdentityUnusable
        It is for another folder, a certificate does not belong to its key, or a CA is there
        already and is another one; nothing is changed then.
    """
    certificates.check_name("federation", bundle.federation)
    certificates.check_name("name", bundle.name)
    request = read_request(folder / f"{bundle.name}{REQUEST}")
    ours = {one.place: one for one in request.asked}
    if (bundle.federation, bundle.name) != (request.federation, request.name):
        raise IdentityUnusable(
            f"the bundle is for {bundle.name} of {bundle.federation}, the folder is of "
            f"{request.name} of {request.federation}"
        )
    if {one.place for one in bundle.signed} != ours.keys():
        raise IdentityUnusable(f"the bundle has not the certificates of {', '.join(ours)}")
    if not ADDRESS.fullmatch(bundle.coordinator):
        raise IdentityUnusable(
            f"the bundle's coordinator {bundle.coordinator[:80]!a} is no address"
        )
    for one in bundle.signed:
        paths = IdentityPaths.of(folder / one.place)
        subject = certificates.verify_chain(one.certificate.encode(), bundle.ca.encode(), now)
        expected = certificates.Subject(
            request.federation, Role(ours[one.place].role), request.name
        )
        if subject.uri != expected.uri:
            raise IdentityUnusable(f"expected a certificate of {expected.uri}, not {subject.uri}")
        if not certificates.matches(
            certificates.load_key(paths.key),
            certificates.parse(one.certificate.encode(), "the certificate")[0],
        ):
            raise IdentityUnusable(f"the bundle's certificate does not belong to {paths.key}")
        if paths.roots.exists() and certificates.read(paths.roots) != bundle.ca.encode():
            raise IdentityUnusable(f"{paths.roots} is of another CA than the bundle")
    for one in bundle.signed:
        paths = IdentityPaths.of(folder / one.place)
        certificates.write(paths.roots, bundle.ca.encode())
        certificates.write(paths.certificate, one.certificate.encode())
    agent = folder / "agent.toml"
    if agent.exists():
        lines = agent.read_text(encoding="utf-8").splitlines(keepends=True)
        dialled = f"coordinator = {json.dumps(bundle.coordinator)}\n"
        changed = [dialled if line.startswith("coordinator = ") else line for line in lines]
        write_atomically(agent, "".join(changed).encode())


def addresses(path: Path) -> dict[str, str]:
    """Return the addresses that a file of settings has, by key."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    keys = ("listen", "metrics", "crypto")
    return {key: str(table[key]) for key in keys if key in table}


def _write_settings(folder: Path, kind: str, given: dict[str, Any]) -> None:
    path = folder / f"{kind}.toml"
    if path.exists():
        raise IdentityUnusable(f"{path} exists: it is not overwritten")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    head = f"# Settings of the {kind} process, read by `hedgerow {kind} --config {path}`.\n\n"
    write_atomically(path, (head + commented(settings_of(kind), given)).encode())


def _write_services(folder: Path, name: str, kinds: Sequence[str], data: str = "") -> None:
    """Write a systemd unit that runs the folder, and a compose file with a container each."""
    program = f"{shlex.quote(sys.executable)} -m hedgerow"
    unit = f"""\
# Install: sudo systemctl enable --now {folder}/hedgerow-{name}.service
[Unit]
Description=Hedgerow {name}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={program} run {shlex.quote(str(folder))}
User={getpass.getuser()}
Restart=on-failure
RestartSec=5
NoNewPrivileges=true
PrivateTmp=true
ProtectSystem=strict
ReadWritePaths={folder}

[Install]
WantedBy=multi-user.target
"""
    write_atomically(folder / f"hedgerow-{name}.service", unit.encode(), mode=0o644)
    lines = [f"# Start: docker compose -f {folder}/compose.yaml up -d", f"name: hedgerow-{name}"]
    lines.append("services:")
    for kind in kinds:
        volumes = [f"{folder}:{folder}"]
        if kind == "agent" and data and "://" not in data:
            volumes.append(f"{Path(data).absolute().parent}:{Path(data).absolute().parent}:ro")
        image = "${HEDGEROW_AGENT_IMAGE:-agent}" if kind == "agent" else kind
        lines += [
            f"  {kind}:",
            f"    image: hedgerow/{image}:${{HEDGEROW_TAG:-dev}}",
            f'    command: ["{kind}", "--config", "{folder}/{kind}.toml"]',
            f'    user: "{os.getuid()}:{os.getgid()}"',
            "    network_mode: host  # the settings' addresses are this machine's",
            "    read_only: true",
            '    tmpfs: ["/tmp:size=256m,mode=1777"]',
            "    restart: unless-stopped",
            f"    volumes: {json.dumps(volumes)}",
        ]
    write_atomically(folder / "compose.yaml", ("\n".join(lines) + "\n").encode(), mode=0o644)
