"""Joining by a token: what the owner of the CA signs for an invitation, and a joiner's folder."""

from __future__ import annotations

import re
import socket
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.operator import joining
from hedgerow.coordinator.operator.joining import PLACES, REQUEST, CertificateRequest, JoinRequest
from hedgerow.services.identity import authority, certificates
from hedgerow.services.identity.certificates import IdentityUnusable, Role, Subject
from hedgerow.services.identity.enrolment import (
    ADDRESS,
    MAX_REFUSED,
    Bundle,
    Invitation,
    Token,
    fingerprint_of,
)
from hedgerow.services.process.texts import parse_address
from hedgerow.services.process.trail import Actor
from hedgerow.services.rpc.enrolment import SERVER_NAME, enrolment, serve_invitation

PORT = 7444
LONGEST_SECONDS = 86_400.0
_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(text: str) -> float:
    """Return the seconds of ``90s``, ``30m`` or ``2h``, up to a day; raises ValueError."""
    match = re.fullmatch(r"(\d{1,5})([smh])", text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ValueError(f"expected a time as 90s, 30m or 2h, up to 24h; received {text!a}")
    return float(seconds)


def own_host(towards: str) -> str:
    """Return this machine's address on its way to ``HOST:PORT``, to which nothing is sent.

    Raises
    ------
    IdentityUnusable
        There is no way.
    """
    host, port = parse_address(towards)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        with socket.socket(found[0][0], socket.SOCK_DGRAM) as way:
            way.connect(found[0][4])
            own = str(way.getsockname()[0])
    except OSError as error:
        raise IdentityUnusable(
            f"this machine has no way to the coordinator {towards} ({error.strerror or error}), "
            "by which its own address would be known: give --listen HOST:PORT"
        ) from error
    return f"[{own}]" if ":" in own else own


def place_of(
    listen: str | None, announce: str | None, coordinator: str
) -> tuple[str, Callable[[int], str]]:
    """Return where to listen, and what turns the port into the address that others dial.

    Parameters
    ----------
    listen, announce : str, optional
        ``HOST:PORT``; this machine's address on the way to the coordinator where not given.
    """
    for given in filter(None, (listen, announce)):
        parse_address(given)
        if not ADDRESS.fullmatch(given):
            raise IdentityUnusable(f"expected HOST:PORT, received {given!a}")
    host = own_host(coordinator) if listen is None else listen.rpartition(":")[0]
    bound = listen or f"{host}:{joining.free_port(host.strip('[]'), PORT)}"
    if announce is not None:
        return bound, lambda port: announce
    if host in ("0.0.0.0", "[::]"):  # noqa: S104
        host = own_host(coordinator)
    return bound, lambda port: f"{host}:{port}"


def invitation(
    ca: Path,
    role: Role,
    name: str,
    seconds: float,
    coordinator: str,
    days: float,
    note: Callable[[str], None],
) -> Invitation:
    """Return an invitation whose requests the CA in folder ``ca`` signs.

    Certificates have the name, roles and hosts that are invited; those in the requests are ignored.

    Parameters
    ----------
    coordinator : str
        Its address; the one that the CA remembers if empty.
    days : float
        For which the certificates are valid.
    note : callable
        Called with each event, in words.

    Raises
    ------
    IdentityUnusable
        The name is malformed, or there is no CA.
    """
    certificates.check_name("name", name)
    certificates.load_key(ca / "ca.key")
    root = certificates.load_certificates(ca / "ca.crt")[0]
    member = Subject(certificates.federation_of(root), role, name)

    def sign(requests: Mapping[str, str]) -> Bundle:
        places = PLACES[member.role]
        if requests.keys() != {place for place, _, _ in places}:
            raise IdentityUnusable(
                f"expected requests of {', '.join(place for place, _, _ in places)}, "
                f"received {len(requests)} others"
            )
        asked = [
            CertificateRequest(place, role, requests[place], list(hosts))
            for place, role, hosts in places
        ]
        request = JoinRequest(member.federation, member.name, asked)
        return joining.sign(ca, request, coordinator, time.time(), days)

    trail, about = joining.trail_of(ca), {"hedgerow.holder": member.uri}
    trail.write("invitation-open", joining.owner(), "success", about)

    def record(action: str, caller: str, let: bool) -> None:
        who = Actor(address=caller.rpartition(":")[0].strip("[]"))
        trail.enqueue(action, who, "success" if let else "failure", about)

    return Invitation(member, sign, time.time() + seconds, time.time, note, record)


async def serve(
    invitation: Invitation,
    seconds: float,
    listen: str,
    announced: Callable[[int], str],
    opened: Callable[[Token], None],
) -> None:
    """Serve an invitation until it has ended.

    Parameters
    ----------
    announced : callable
        Port that is listened on to the ``HOST:PORT`` that the token says.
    opened : callable
        Is given the token.

    Raises
    ------
    OSError
        The address cannot be bound.
    FederationError
        It has ended before the member confirmed that its folder is complete.
    """
    pair = authority.lone_server(SERVER_NAME, time.time(), seconds)

    def bound(port: int) -> None:
        digest = fingerprint_of(pair[1])
        opened(Token(announced(port), invitation.member, digest, invitation.secret))

    await serve_invitation(invitation, listen, pair, seconds, bound)
    if invitation.complete:
        return
    who = f"{invitation.member.role}/{invitation.member.name}"
    if invitation.refused >= MAX_REFUSED:
        ended = f"{invitation.refused} tries were refused"
    else:
        ended = f"{seconds:g} s have passed"
    if invitation.signed:
        raise FederationError(
            f"{ended}, and {who} has not said that its folder is complete; its requests are "
            f"signed: invite it again, and revoke what was signed if it was not {who} itself"
        )
    raise FederationError(f"{ended}, and nothing was signed: invite {who} again")


def join(token: Token, folder: Path, data: str, min_silos: int) -> tuple[Bundle, str]:
    """Make a member's folder, have its requests signed, and complete it.

    What was interrupted can be repeated with the same token, as long as that is open, or with
    another one: the folder's keys and settings stay.

    Returns
    -------
    Bundle
    str
        Why the inviting side did not learn that the folder is complete; usually nothing.

    Raises
    ------
    FederationError
        Nothing is written where the token's server is not reached.
    """
    with enrolment(token) as server:
        request = _requests(token.member, folder, data, min_silos)
        bundle = server.enrol({one.place: one.request for one in request.asked})
        joining.accept(folder, bundle, time.time())
        try:
            server.finish()
        except FederationError as error:
            return bundle, str(error)
    return bundle, ""


def _requests(member: Subject, folder: Path, data: str, min_silos: int) -> JoinRequest:
    """Return the requests of the folder, which is made unless it is there."""
    file = folder / f"{member.name}{REQUEST}"
    if not file.exists():
        if folder.exists() and any(folder.iterdir()):
            raise IdentityUnusable(
                f"{folder} is not empty and has no {file.name}: where an earlier `hedgerow join` "
                "was interrupted, remove it and try again; else give another --dir"
            )
        if member.role is Role.SILO:
            return joining.make_silo(folder, member.federation, member.name, data, min_silos)
        return joining.make_operator(folder, member.federation, member.name)
    found = joining.read_request(file)
    ours = [(one.place, one.role) for one in found.asked]
    expected = [(place, role) for place, role, _ in PLACES[member.role]]
    if (found.federation, found.name, ours) != (member.federation, member.name, expected):
        raise IdentityUnusable(f"{file} is not of {member.uri}, which the token invites")
    if member.role is Role.SILO:
        path = folder / "agent.toml"
        settings = tomllib.loads(certificates.read(path).decode())
        kept = (settings["data"]["path"], settings["policy"]["min_silos"])
        if kept != (joining.location(data), min_silos):
            raise IdentityUnusable(
                f"{path} is there, with data.path = {kept[0]} and min_silos = {kept[1]}: give the "
                "same, and change them in the file"
            )
    return found
