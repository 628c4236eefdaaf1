"""``hedgerow doctor``: what keeps a process or an operator from working, and what to do."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.operator.commands.options import PATH, CoordinatorOptions, connected
from hedgerow.coordinator.operator.processes import kind_of, settings_files, settings_of
from hedgerow.services.identity.certificates import (
    IdentityPaths,
    IdentityUnusable,
    Role,
    load_identity,
)
from hedgerow.services.process import settings
from hedgerow.services.process.terminal import command, listing, tell
from hedgerow.services.process.texts import parse_address
from hedgerow.services.rpc.probing import Finding, probe
from hedgerow.services.rpc.proxies import ENVIRONMENT, OPERATORS, operators_proxy
from hedgerow.services.wire.signed_job import READERS

ROLES = {"coordinator": Role.COORDINATOR, "agent": Role.SILO, "crypto": Role.CRYPTO}
SOON_DAYS = 7.0
"""A certificate that ends within is reported."""
MOST_SKEW = 60.0
"""Seconds that two clocks may differ by; certificates are valid five minutes before they are."""
ROOM_BYTES = 1 << 30
"""Room on a disk below which it is reported."""
PROXIES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


@dataclass(frozen=True, slots=True)
class Checkup:
    """Looks at one process, or at an operator who has an identity and a coordinator only."""

    role: Role
    """What the identity is for."""
    given: Any
    """Its settings."""

    @property
    def paths(self) -> IdentityPaths:
        """Files of the identity."""
        return IdentityPaths.of(self.given.identity)

    def findings(self) -> Iterator[Finding]:
        """Look at one thing after the other."""
        sound = [*self._certificate()]
        yield from sound
        usable = all(finding.good for finding in sound)
        if getattr(self.given, "coordinator", "") and usable:
            name = self.given.server_name
            for one in self.given.coordinator.split(","):
                peer = ("coordinator", one.strip(), name, Role.COORDINATOR, self._proxy)
                yield from self._peer(*peer)
        if not self._proxy:
            yield self._unused_proxies()
        if hasattr(self.given, "listen"):
            yield self._port(usable)
        if getattr(self.given, "crypto", "") and usable:
            yield from self._peer("crypto", self.given.crypto, None, Role.CRYPTO)
        elif hasattr(self.given, "crypto"):
            said = "keys are held by the agent itself: no crypto process is set"
            yield Finding("crypto", True, said)
        if getattr(self.given, "key_uri", None):
            yield self._token()
        if hasattr(self.given, "data"):
            yield self._table()
            yield self._policy()
        yield from self._disk()

    def _certificate(self) -> Iterator[Finding]:
        try:
            subject = load_identity(self.paths, time.time())
        except IdentityUnusable as error:
            yield Finding("certificate", False, str(error), "see `hedgerow pki show`")
            return
        days = (subject.not_after - time.time()) / 86400
        said = f"{subject.uri}, {days:.1f} days left"
        fits = READERS if self.role is Role.OPERATOR else (self.role,)
        if subject.role not in fits:
            mend = f"have one signed for the role {self.role}"
            yield Finding("certificate", False, said, mend)
        elif self.role is Role.CRYPTO and subject.name != self.given.silo:
            mend = f"`silo` is {self.given.silo}: they must be the same"
            yield Finding("certificate", False, said, mend)
        elif days < SOON_DAYS:
            yield Finding("certificate", False, said, "renew it: `hedgerow pki renew`")
        else:
            yield Finding("certificate", True, said)
        if self.paths.key.stat().st_mode & 0o077:
            said = f"{self.paths.key} can be read by others"
            yield Finding("key", False, said, f"chmod 600 {self.paths.key}")

    @property
    def _proxy(self) -> str:
        given = getattr(self.given, "proxy", "")
        return operators_proxy() if self.role is Role.OPERATOR else str(given)

    def _peer(
        self, what: str, address: str, name: str | None, role: Role, proxy: str = ""
    ) -> Iterator[Finding]:
        from hedgerow.services.rpc.channel import clock_ahead

        found = [*probe(address, self.paths, name, proxy)]
        for one in found:
            yield one._replace(check=f"{what} {one.check}")
        if not found[-1].good:
            return
        uri = found[-1].said
        if f"/{role}/" not in uri:
            yield Finding(
                f"{what} role", False, f"{address} is {uri}", f"dial the {role}'s address"
            )
            return
        try:
            serves, ahead = clock_ahead(address, self.paths, name, proxy)
        except FederationError as error:
            yield Finding(what, False, str(error), "look at its log")
            return
        said = "answers" if serves else "answers that it does not serve"
        yield Finding(what, serves, said, "" if serves else "look at its log")
        said = f"{abs(ahead):.1f} s {'behind' if ahead > 0 else 'ahead of'} {address}"
        mend = "" if abs(ahead) <= MOST_SKEW else "set the clocks by NTP"
        yield Finding("clock", not mend, said, mend)

    def _unused_proxies(self) -> Finding:
        found = [name for name in PROXIES if os.environ.get(name)]
        if not found:
            return Finding("proxy", True, "none is set")
        own = OPERATORS if self.role is Role.OPERATOR else "proxy"
        said = f'{", ".join(found)} is set and not used, unless {own} is "{ENVIRONMENT}"'
        return Finding("proxy", True, said)

    def _port(self, usable: bool) -> Finding:
        from hedgerow.services.rpc.channel import clock_ahead

        host, port = parse_address(self.given.listen)
        if port == 0:
            return Finding("port", True, "a free one at each start; clients need a fixed one")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((host, port))
            except OSError as error:
                why = error.strerror or str(error)
            else:
                return Finding("port", True, f"{port} is free: the process is not running")
        own = "localhost" if host in ("0.0.0.0", "::", "") else host  # noqa: S104
        try:
            if usable and clock_ahead(f"{own}:{port}", self.paths)[0]:
                return Finding("port", True, f"{port}: the process serves")
        except FederationError as error:
            why = str(error)
        mend = "end the process that has it, or set `listen` to another port"
        return Finding("port", False, f"{port} is taken, and not by this process ({why})", mend)

    def _token(self) -> Finding:
        try:
            self.given.sealing_secret()
        except FederationError as error:
            return Finding("token", False, str(error), "correct `key_uri`, or ask for the HSM")
        return Finding("token", True, "its key seals private keys")

    def _table(self) -> Finding:
        sources = import_module("hedgerow.client_agent.sources")
        try:
            rows, columns = sources.look(self.given.data)
        except FederationError as error:
            return Finding("table", False, str(error), "correct [data]")
        return Finding("table", True, f"{rows:,} rows, {columns} columns that a job could use")

    def _policy(self) -> Finding:
        rules = sorted(self.given.policy.model_fields_set)
        if not rules:
            return Finding("policy", True, "no rule is set: the defaults hold (docs/trust.md)")
        return Finding("policy", True, f"{len(rules)} rules: {', '.join(rules)}")

    def _disk(self) -> Iterator[Finding]:
        for key, folder in self._folders():
            try:
                with tempfile.TemporaryFile(dir=folder):
                    room = shutil.disk_usage(folder).free
            except OSError as error:
                said = f"{key}: {folder} cannot be written ({error.strerror})"
                yield Finding("disk", False, said, "correct its owner and mode, or make room")
                continue
            said = f"{key}: {room / 1e9:.1f} GB are free in {folder}"
            mend = "" if room >= ROOM_BYTES else "make room, at least 1 GB"
            yield Finding("disk", not mend, said, mend)

    def _folders(self) -> Iterator[tuple[str, Path]]:
        for key in ("state", "artefacts"):
            place = str(getattr(self.given, key, ""))
            if place and "://" not in place:
                folder = Path(place).absolute()
                while not folder.exists():
                    folder = folder.parent
                yield key, folder


def _of_file(path: Path) -> Iterator[Finding]:
    kind = kind_of(path)
    try:
        given = settings.load(settings_of(kind), path)
    except FederationError as error:
        yield Finding("settings", False, str(error), "see docs/operations.md")
        return
    yield Finding("settings", True, f"{path}: of {'a' if kind != 'agent' else 'an'} {kind}")
    yield from Checkup(ROLES[kind], given).findings()


@command()
@click.argument("path", required=False, type=PATH)
@connected(required=False)
def doctor(path: Path | None, connection: CoordinatorOptions) -> None:
    """Look at everything that a process needs; one line each, with the mend.

    PATH is a file of settings, or a folder with several, as `hedgerow init` makes it. Without it
    the operator's own identity and coordinator are looked at. Run it as the user and on the
    machine of the process. Exit code 1 where something is wrong.
    """
    found: list[tuple[str, Finding]] = []
    if path is None:
        operator = connection.needed()
        found += [("operator", one) for one in Checkup(Role.OPERATOR, operator).findings()]
    for file in () if path is None else settings_files(path):
        found += [(file.stem, one) for one in _of_file(file)]
    tell([{"process": name, **one._asdict()} for name, one in found], lambda: _show(found))
    if not all(one.good for _, one in found):
        raise click.exceptions.Exit(1)


def _show(found: Iterable[tuple[str, Finding]]) -> None:
    rows = [(name, "ok" if one.good else "WRONG", one.check, one.line) for name, one in found]
    listing(("process", "", "check", "found; mend"), rows, keep=("process", "", "check"))
