"""The one-shot ``pki`` of docker-compose.yml: every identity of the federation, each in its volume.

It plays the owner of the CA and all holders at once, which across organisations are different
people on different machines (docs/operations.md). Run again it renews what is past half its life,
with ``--renew`` everything; servers take new certificates up without a restart.
"""

from __future__ import annotations

import argparse
import secrets
import time
from pathlib import Path

from hedgerow.services.identity import authority, certificates
from hedgerow.services.identity.certificates import IdentityPaths, Role

ROOT = Path("/pki")
FEDERATION = "demo"
COORDINATORS = ("coordinator", "coordinator-standby", "localhost", "127.0.0.1")
SILOS = ("silo-0", "silo-1", "silo-2", "guest", "host-0", "host-1")


def main() -> None:
    """Make or renew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--renew", action="store_true", help="renew certificates of any age")
    parser.add_argument("--new-keys", action="store_true", help="with new keys")
    parser.add_argument("--only", metavar="FOLDER", help="this identity only")
    parser.add_argument("--age-days", type=float, default=0.0, help="as if issued so long ago")
    given = parser.parse_args()
    if not (ROOT / "ca/ca.key").exists():
        # Backdated, so that the fault tests can issue certificates that have expired already.
        authority.create_authority(ROOT / "ca", FEDERATION, time.time() - 86400 * 40)
    holders: list[tuple[str, Role, str, tuple[str, ...]]] = [
        ("coordinator", Role.COORDINATOR, "coordinator", COORDINATORS),
        ("operator", Role.OPERATOR, "operator", ()),
        ("admin", Role.ADMIN, "admin", ()),
    ]
    for silo in SILOS:
        crypto = f"crypto-{silo.removeprefix('silo-')}"
        holders.append((silo, Role.SILO, silo, ()))
        holders.append((f"crypto-{silo}", Role.CRYPTO, silo, (crypto, "localhost", "127.0.0.1")))
    for place, role, name, hosts in holders:
        if given.only in (None, place):
            _provide(ROOT / place, role, name, hosts, given)
        sealing = ROOT / place / "sealing.key"
        if role is Role.CRYPTO and not sealing.exists():
            certificates.write(sealing, secrets.token_bytes(32))
    _logins()


def _provide(
    folder: Path, role: Role, name: str, hosts: tuple[str, ...], given: argparse.Namespace
) -> None:
    paths = IdentityPaths.of(folder)
    now = time.time()
    if paths.certificate.exists() and not given.renew:
        subject = certificates.subject_of(certificates.read(paths.certificate))
        if now < (subject.not_before + subject.not_after) / 2:
            return
    if not paths.roots.exists():
        certificates.write(paths.roots, certificates.read(ROOT / "ca/ca.crt"))
    key_name = "tls.key.next" if given.new_keys and paths.key.exists() else "tls.key"
    request = authority.create_request(folder, FEDERATION, role, name, key_name=key_name)
    issued = now - given.age_days * 86400
    certificate = authority.sign_request(
        ROOT / "ca", certificates.read(request), role, name, now=issued, hosts=hosts
    )
    subject = authority.install(folder, certificate, issued + 1)
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(subject.not_after))
    print(f"{subject.uri} until {until}", flush=True)


def _logins() -> None:
    """Make the database's password, once, for both its ends."""
    password = ROOT / "database/password"
    if not password.exists():
        word = secrets.token_urlsafe(24)
        certificates.write(
            ROOT / "login/pgpass", f"database:5432:hedgerow:hedgerow:{word}\n".encode()
        )
        certificates.write(password, word.encode())
        password.chmod(0o644)  # the database runs as another user; nobody else has the volume


if __name__ == "__main__":
    main()
