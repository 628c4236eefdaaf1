"""``hedgerow pki invite`` and ``join``: one token, one member, over real TLS; and attacks."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hedgerow.api.federation.v1 import enrolment_service_pb2 as pb
from hedgerow.boosting.errors import FederationError, Unauthorised, Unreachable
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator import inviting, joining
from hedgerow.services.identity import authority, certificates
from hedgerow.services.identity.certificates import IdentityPaths, Role, Subject
from hedgerow.services.identity.enrolment import (
    MAX_REFUSED,
    Bundle,
    Invitation,
    SignedPlace,
    Token,
)
from hedgerow.services.rpc.doorman import MAX_STRANGERS
from hedgerow.services.rpc.enrolment import SERVER_NAME, enrolment
from tests.coordinator.operator.commands.interceptor import Interceptor
from tests.federation.processes import wait_until

pytestmark = pytest.mark.process

PATIENCE = 60
VALID = 600.0


def hedgerow(*words: object, typed: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=typed)


def join(token: Token, *more: object) -> Result:
    words = ("--data", "rows.csv") if token.member.role is Role.SILO else ()
    return hedgerow("join", token.write(), *words, *more)


@pytest.fixture
def ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CA that has signed a coordinator, and a silo's table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEDGEROW_CONFIG", str(tmp_path / "config.toml"))
    Path("rows.csv").write_text("x,label\n1,0\n")
    assert hedgerow("pki", "init", "--federation", "trial", "--dir", "ca").exit_code == 0
    (tmp_path / "ca" / joining.COORDINATOR).write_text('{"address": "localhost:7443"}')
    return tmp_path / "ca"


class Open:
    """An invitation that is served in a thread."""

    def __init__(self, invitation: Invitation, noted: list[str]) -> None:
        self.invitation, self.noted = invitation, noted
        tokens: queue.Queue[Token] = queue.Queue()
        self.ended: str | None = None
        self._thread = threading.Thread(target=self._serve, args=(tokens,), daemon=True)
        self._thread.start()
        self.token = tokens.get(timeout=PATIENCE)

    def _serve(self, tokens: queue.Queue[Token]) -> None:
        def announced(port: int) -> str:
            return f"127.0.0.1:{port}"

        try:
            asyncio.run(
                inviting.serve(self.invitation, VALID, "127.0.0.1:0", announced, tokens.put)
            )
            self.ended = ""
        except FederationError as error:
            self.ended = str(error)

    def end(self) -> str:
        """Wait for the end and return why, or nothing where the member is complete."""
        self._thread.join(PATIENCE)
        assert self.ended is not None, "the invitation is still open"
        return self.ended


Invite = Callable[..., Open]


@pytest.fixture
def invite(ca: Path) -> Iterator[Invite]:
    made: list[Open] = []

    def open_one(
        name: str = "north", role: Role = Role.SILO, kind: type[Invitation] | None = None
    ) -> Open:
        noted: list[str] = []
        invitation = inviting.invitation(ca, role, name, VALID, "", 30, noted.append)
        if kind is not None:
            invitation.__class__ = kind
        made.append(Open(invitation, noted))
        return made[-1]

    yield open_one
    for one in made:  # the next call finds it ended, and so does its server
        one.invitation.refused = MAX_REFUSED
        if one.ended is None:
            with pytest.raises(FederationError), enrolment(one.token) as server:
                server.finish()
        one.end()


def issued(ca: Path) -> list[str]:
    file = ca / authority.ISSUED
    return [line.split()[1] for line in file.read_text().splitlines()] if file.exists() else []


def requests_of(
    member: Subject, uri: str | None = None, curve: ec.EllipticCurve | None = None
) -> dict[str, str]:
    """Return requests of new keys, which are not kept."""
    made = {}
    for place, role, _ in joining.PLACES[member.role]:
        named = [x509.UniformResourceIdentifier(uri or replace(member, role=role).uri)]
        names = [*named, x509.DNSName("coordinator.example")]
        made[place] = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([]))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(ec.generate_private_key(curve or ec.SECP256R1()), hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
            .decode()
        )
    return made


def enrolled(token: Token, requests: Mapping[str, str]) -> Bundle:
    with enrolment(token) as server:
        return server.enrol(requests)


def test_one_command_each_makes_a_silos_folder_as_init_and_sign_do(ca: Path) -> None:
    command = [sys.executable, "-m", "hedgerow"]
    words = ["pki", "invite", "north", "--ca", str(ca), "--valid", "9m", "--json"]
    with subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        shown = json.loads(owner.stdout.readline())
        joined = subprocess.run(
            [*command, "join", "-", "--data", "rows.csv", "--min-silos", "2", "--dir", "it"],
            input=shown["token"] + "\n", text=True, capture_output=True, timeout=PATIENCE,
        )  # fmt: skip
        assert joined.returncode == 0, joined.stderr
        rest, errors = owner.communicate(timeout=PATIENCE)
    assert (owner.returncode, rest) == (0, "")
    assert "silo/north is complete" in errors
    token = Token.read(shown["token"])
    assert shown["token"].rsplit("/", 1)[1] not in errors + joined.stdout + joined.stderr
    assert f"open at {token.address} until" in errors
    kept = [json.loads(line)["event.action"] for line in (ca / "audit.jsonl").open()]
    assert {"invitation-open", "invitation-complete"} <= set(kept)

    made = hedgerow(
        "init", "silo", "--federation", "trial", "--name", "south", "--data", "rows.csv"
    )
    assert made.exit_code == 0
    signed = hedgerow("pki", "sign", "south/south.request.json", "--ca", ca, "--yes")
    assert signed.exit_code == 0
    assert hedgerow("init", "accept", "south/south.bundle.json").exit_code == 0
    files = [
        {str(path.relative_to(folder)).replace(name, "NAME") for path in folder.rglob("*.*")}
        for folder, name in ((Path("it"), "north"), (Path("south"), "south"))
    ]
    assert files[0] == files[1] - {"NAME.bundle.json"}
    assert 'coordinator = "localhost:7443"' in Path("it/agent.toml").read_text()
    assert "\nmin_silos = 2\n" in Path("it/agent.toml").read_text()
    for place, role, hosts in joining.PLACES[Role.SILO]:
        paths = IdentityPaths.of(Path("it") / place)
        assert certificates.load_identity(paths, time.time()).role is role
        assert certificates.hosts_of(paths.certificate.read_bytes()) == hosts
        assert paths.key.stat().st_mode & 0o077 == 0
    assert issued(ca)[:2] == ["silo/north", "crypto/north"]
    again = hedgerow("join", shown["token"], "--data", "rows.csv", "--dir", "other")
    assert again.exit_code == 2
    assert "no invitation is open there" in again.stderr
    assert not Path("other").exists()


def test_an_operator_joins_and_commands_use_its_federation(invite: Invite, tmp_path: Path) -> None:
    opened = invite("ann", Role.OPERATOR)
    told = hedgerow("join", opened.token.write(), "--data", "rows.csv")
    assert "has no table: leave --data out" in told.stderr
    assert "commands now use trial" in join(opened.token).stdout
    assert str(tmp_path / "ann/identity") in hedgerow("use").stdout
    assert opened.end() == ""
    assert issued(tmp_path / "ca") == ["operator/ann"]


def test_of_two_joiners_with_one_token_one_becomes_the_member(invite: Invite, ca: Path) -> None:
    opened = invite()
    requests = [requests_of(opened.token.member) for _ in range(2)]
    begin = threading.Barrier(2)

    def race(k: int) -> str:
        with enrolment(opened.token) as server:
            begin.wait(PATIENCE)
            try:
                return server.enrol(requests[k]).name
            except FederationError as error:
                return str(error)

    with ThreadPoolExecutor(2) as both:
        found = sorted(both.map(race, range(2)))
    assert found[0] == "north"
    assert "somebody else has used this token" in found[1]
    assert issued(ca) == ["silo/north", "crypto/north"]
    assert any("has the token too" in line for line in opened.noted)


def test_an_interrupted_join_is_repeated_with_the_same_keys(invite: Invite, ca: Path) -> None:
    opened = invite()
    asked = joining.make_silo(ca.parent / "north", "trial", "north", "rows.csv", 3).asked
    lost = enrolled(opened.token, {one.place: one.request for one in asked})
    assert not opened.invitation.complete
    other = join(opened.token, "--min-silos", "2")
    assert "with data.path = " in other.stderr
    done = join(opened.token)
    assert done.exit_code == 0, done.stderr
    assert opened.end() == ""
    assert issued(ca) == ["silo/north", "crypto/north"]
    for one in lost.signed:
        assert (ca.parent / "north" / one.place / "tls.crt").read_text() == one.certificate
    # Another invitation renews what is there; it is not for another member's folder.
    assert join(invite().token).exit_code == 0
    assert "is not of hedgerow://trial/silo/south" in _moved(invite("south").token)
    half = ca.parent / "half"
    half.mkdir()
    (half / "crypto.toml").write_text("")
    refused = join(invite().token, "--dir", half)
    assert "was interrupted, remove it and try again" in refused.stderr


def _moved(token: Token) -> str:
    """Join as another member in the folder of north."""
    Path("north/north.request.json").rename("north/south.request.json")
    return join(token, "--dir", "north").stderr


def test_a_folder_is_complete_even_where_the_owner_is_not_told(invite: Invite) -> None:
    class Vanishes(Invitation):
        def finish(self, caller: str, secret: bytes) -> None:
            raise Unreachable("the line is dead")

    done = join(invite(kind=Vanishes).token)
    assert done.exit_code == 0
    assert "tell the owner of the CA that all is in its place" in done.stdout
    assert Path("north/agent/tls.crt").exists()


def test_wrong_secrets_end_an_invitation_for_its_member_too(invite: Invite, ca: Path) -> None:
    opened = invite()
    for secret in (b"", b"\0" * 31, bytes(32), bytes(33)) * 5:
        forged = replace(opened.token, secret=secret)
        if opened.invitation.refused == MAX_REFUSED - 1:
            break
        with pytest.raises(Unauthorised, match="secret is not that of this invitation"):
            enrolled(forged, requests_of(forged.member))
    with pytest.raises(Unauthorised), enrolment(replace(opened.token, secret=bytes(32))) as server:
        server.finish()
    assert opened.end() == f"{MAX_REFUSED} tries were refused, and nothing was signed: invite " \
                           "silo/north again"  # fmt: skip
    assert "no invitation is open there" in join(opened.token).stderr
    assert not Path("north").exists()
    assert issued(ca) == []
    refused: list[dict[str, object]] = []

    def on_record() -> bool:
        kept = [json.loads(line) for line in (ca / "audit.jsonl").open()]
        refused[:] = [line for line in kept if line["event.action"] == "invitation-refused"]
        return len(refused) == MAX_REFUSED

    wait_until(on_record, PATIENCE, "each refusal is on record")
    for line in refused:
        assert (line["event.outcome"], line["source.ip"]) == ("failure", "127.0.0.1")
        assert line["hedgerow.holder"] == opened.token.member.uri
    assert hedgerow("audit-log", "verify", ca / "audit.jsonl").exit_code == 0


def test_an_expired_invitation_signs_nothing(ca: Path) -> None:
    now = [1000.0]
    opened = Open(
        Invitation(
            Subject("trial", Role.SILO, "north"),
            lambda requests: pytest.fail("signed"),
            1600.0,
            lambda: now[0],
            lambda line: None,
        ),
        [],
    )
    now[0] = 1600.0
    refused = join(opened.token)
    assert "the invitation has ended: ask for another" in refused.stderr
    assert not list(Path("north").rglob("*.crt"))
    assert "nothing was signed" in opened.end()
    brief = hedgerow("pki", "invite", "north", "--ca", ca, "--valid", "1s")
    assert brief.exit_code == 2
    assert "1 s have passed, and nothing was signed: invite silo/north again" in brief.stderr


@pytest.mark.parametrize("passed", [0, 1])
def test_a_man_in_the_middle_hears_nothing(invite: Invite, tmp_path: Path, passed: int) -> None:
    opened = invite()
    between = Interceptor(opened.token.address, passed, tmp_path)
    refused = join(replace(opened.token, address=between.address))
    between.close()
    assert refused.exit_code == 2, refused.output
    why = "is not the one that the token names" if not passed else "certificate"
    assert why in refused.stderr
    assert b"".join(between.heard) == b""
    assert opened.invitation.refused == 0
    assert not list(Path(tmp_path).glob("north/*/*.crt"))
    assert join(opened.token).exit_code == 0


def test_certificates_have_what_was_invited_whatever_is_requested(invite: Invite, ca: Path) -> None:
    member = Subject("trial", Role.SILO, "north")
    good = requests_of(member)
    admin = requests_of(member, "hedgerow://trial/admin/north")
    lies: list[tuple[dict[str, str], str]] = [
        (requests_of(replace(member, name="south")), "was made for hedgerow://trial/silo/south"),
        (requests_of(member, "hedgerow://trial/silo/\x1b[2J\n"), "was made for "),
        (good | {"crypto": admin["crypto"]}, "was made for hedgerow://trial/admin"),
        ({"agent": good["agent"]}, "expected requests of agent, crypto"),
        (good | {"identity": good["agent"]}, "expected requests of agent, crypto"),
        (requests_of(member, curve=ec.SECP384R1()), "is not on P-256"),
        ({"agent": "", "crypto": ""}, "is no PEM certificate request"),
        (good | {"agent": good["crypto"]}, "was made for hedgerow://trial/crypto/north"),
    ]
    assert len(lies) < MAX_REFUSED
    opened = invite()
    for requests, why in lies:
        with pytest.raises(FederationError, match=why):
            enrolled(opened.token, requests)
    assert len(opened.noted) == len(lies)
    assert all(line.isascii() and line.isprintable() for line in opened.noted)
    found = {one.place: one.certificate for one in enrolled(opened.token, good).signed}
    for place, role, hosts in joining.PLACES[Role.SILO]:
        assert certificates.subject_of(found[place].encode()).uri == replace(member, role=role).uri
        assert certificates.hosts_of(found[place].encode()) == hosts


def test_a_flood_of_connections_and_long_requests_keep_no_member_out(invite: Invite) -> None:
    opened = invite()
    host, _, port = opened.token.address.rpartition(":")
    held = [socket.create_connection((host, int(port))) for _ in range(3 * MAX_STRANGERS)]
    long = dict.fromkeys(("agent", "crypto"), "x" * 40000)
    for _ in range(MAX_REFUSED + 1):  # not even read, so that they count as no tries
        with pytest.raises(FederationError, match="RESOURCE_EXHAUSTED"):
            enrolled(opened.token, long)
    assert join(opened.token).exit_code == 0
    for one in held:
        one.close()


def lies() -> Iterator[tuple[str, Callable[[Bundle], Bundle]]]:
    """Yield lies in every field of an answer."""
    texts = ("", "north\x1b[2J", "x" * 70_000, "\ud7ff", "other")
    for name in ("federation", "name", "ca", "coordinator"):
        for text in texts:
            if (name, text) != ("coordinator", "other"):
                yield name, lambda true, name=name, text=text: replace(true, **{name: text})
    for text in texts:
        yield (
            "signed",
            lambda true, text=text: replace(
                true, signed=[SignedPlace(text, true.signed[0].certificate), true.signed[1]]
            ),
        )
        yield (
            "signed",
            lambda true, text=text: replace(
                true, signed=[SignedPlace(true.signed[0].place, text), true.signed[1]]
            ),
        )
    yield "signed", lambda true: replace(true, signed=true.signed[:1])
    yield (
        "signed",
        lambda true: replace(
            true,
            signed=[
                SignedPlace(true.signed[0].place, true.signed[1].certificate),
                SignedPlace(true.signed[1].place, true.signed[0].certificate),
            ],
        ),
    )


def test_a_lie_in_any_field_of_the_answer_leaves_the_folder_without_certificates(
    invite: Invite,
) -> None:
    told: list[Callable[[Bundle], Bundle]] = []

    class Lies(Invitation):
        def enrol(self, caller: str, secret: bytes, requests: Mapping[str, str]) -> Bundle:
            return told[-1](super().enrol(caller, secret, requests))

    opened = invite(kind=Lies)
    wire = {"signed" if one.name == "certificates" else one.name
            for one in pb.EnrolMemberResponse.DESCRIPTOR.fields}  # fmt: skip
    covered = set()
    for field, lie in lies():
        told.append(lie)
        covered.add(field)
        refused = join(opened.token)
        assert refused.exit_code == 2, (field, refused.output)
        assert "Traceback" not in refused.output
        assert refused.stderr.replace("\n", "").isprintable(), (field, refused.stderr)
        assert not list(Path("north").rglob("*.crt")), field
    assert covered == wire
    told.append(lambda true: true)
    assert join(opened.token).exit_code == 0


def test_a_token_that_is_none_is_refused_and_not_repeated(ca: Path) -> None:
    good = Token(
        "c.example:7444", Subject("trial", Role.SILO, "north"), bytes(32), bytes(range(32))
    )
    assert Token.read(f" {good.write()}\n") == good
    secret = good.write().rsplit("/", 1)[1]
    assert "secret" not in repr(good)
    for text, why in (
        (good.write()[:-1], "expected a token as `hedgerow pki invite` prints it"),
        (good.write() + "a", "expected a token"),
        (good.write().replace("c.example", "c\x1b[2J"), "expected a token"),
        (good.write().replace("/north/", "/../"), "name '..'"),
        (good.write().replace("/trial/", "/a b/"), "federation 'a b'"),
        (good.write().replace("/silo/", "/admin/"), "neither a silo nor an operator"),
        (good.write().replace(":7444", ""), "expected HOST:PORT"),
        ("", "received 0 characters"),
    ):
        refused = hedgerow("join", "--data", "rows.csv", "-", typed=text)
        assert refused.exit_code == 2, refused.output
        assert why in refused.stderr
        assert secret not in refused.stderr
    assert not Path("north").exists()
    missing = hedgerow("join", good.write())
    assert "which needs --data, its table" in missing.stderr


def test_an_invitation_that_cannot_be_opened_says_why(ca: Path) -> None:
    def refused(*words: object) -> str:
        found = hedgerow("pki", "invite", *words)
        assert found.exit_code == 2, found.output
        assert found.stdout == ""
        return found.stderr

    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"cannot listen on {at}" in refused("north", "--ca", ca, "--listen", at)
    assert "as 90s, 30m or 2h" in refused("north", "--ca", ca, "--valid", "1d")
    assert "as 90s, 30m or 2h" in refused("north", "--ca", ca, "--valid", "0s")
    assert "name '../x'" in refused("../x", "--ca", ca)
    assert "cannot be read" in refused("north", "--ca", "none", "--coordinator", "127.0.0.1:1")
    assert "expected HOST:PORT" in refused("north", "--ca", ca, "--listen", "here")
    assert "expected HOST:PORT" in refused("north", "--ca", ca, "--announce", "a b:1")
    unknown = refused("north", "--ca", ca, "--coordinator", "nowhere.invalid:1")
    assert "has no way to the coordinator nowhere.invalid:1" in unknown
    (ca / joining.COORDINATOR).unlink()
    assert "has signed no coordinator yet" in refused("north", "--ca", ca)


def test_nobody_without_the_token_learns_more_than_that_a_server_is_there(invite: Invite) -> None:
    opened = invite()
    pem = ssl.get_server_certificate(("127.0.0.1", int(opened.token.address.rpartition(":")[2])))
    shown = x509.load_pem_x509_certificate(pem.encode())
    assert shown.subject.rfc4514_string() == f"CN={SERVER_NAME}"
    with grpc.secure_channel(
        opened.token.address,
        grpc.ssl_channel_credentials(pem.encode()),
        (("grpc.ssl_target_name_override", SERVER_NAME),),
    ) as channel:
        for method in ("/grpc.health.v1.Health/Check", "/hedgerow.api.federation.v1.JobService/X"):
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(method)(b"", timeout=PATIENCE)
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    wait_until(lambda: opened.invitation.refused == 0, PATIENCE, "no try is counted")
