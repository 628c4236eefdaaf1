"""Keys that were stolen: whose certificates are revoked, and lists that lie about it."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from hedgerow.boosting.errors import (
    FederationError,
    PolicyDeclined,
    SignatureInvalid,
    Unauthorised,
    Unreachable,
)
from hedgerow.boosting.exchange import Silo
from hedgerow.client_agent.policy import Policy
from hedgerow.coordinator.operator.commands.pki import pki
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.crypto.errors import InputRefused
from hedgerow.services.identity import authority, certificates
from hedgerow.services.identity.certificates import IdentityPaths, IdentityUnusable, Role
from hedgerow.services.identity.peers import FileIdentity, channel_credentials
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.rpc.channel import dial, server_certificate
from hedgerow.services.rpc.crypto import RemoteVault
from hedgerow.services.rpc.federation import FederationClient, Heartbeat, Registration
from hedgerow.services.rpc.metering import Metrics
from tests.federation.processes import Federation, wait_until, write_table
from tests.services.rpc.test_crypto_process import CryptoProcess

HOSTS = ("localhost", "127.0.0.1")
JOB = """
strategy = "bagging"
seed = 3
label = "label"
min_silos = 2
silos = ["s0", "s1"]
start_timeout_seconds = 600
[bagging]
rounds = 1
evaluate = "none"
[booster]
max_depth = 2
"""


@dataclass
class Authority:
    """A federation's CA, as its owner runs it, and the identities that it has signed."""

    folder: Path
    at: Path

    @classmethod
    def make(cls, folder: Path, at: Path) -> Authority:
        authority.create_authority(folder, "fed", time.time())
        return cls(folder, at)

    def issue(self, place: str, role: Role, name: str) -> IdentityPaths:
        """Issue a certificate of a new key."""
        home = self.at / place
        paths = IdentityPaths.of(home)
        paths.key.unlink(missing_ok=True)
        request = authority.create_request(home, "fed", role, name)
        pem = authority.sign_request(
            self.folder, request.read_bytes(), role, name, now=time.time(), hosts=HOSTS
        )
        certificates.write(paths.certificate, pem)
        certificates.write(paths.roots, (self.folder / "ca.crt").read_bytes())
        return paths

    def revoke(self, *who: str) -> bytes:
        """Run the command and return the list."""
        done = CliRunner().invoke(pki, ["revoke", *who, "--ca", str(self.folder)])
        assert done.exit_code == 0, done.output
        return (self.folder / "ca.crl").read_bytes()


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    made = Authority.make(tmp_path / "ca", tmp_path / "pki")
    made.issue("coordinator", Role.COORDINATOR, "coordinator")
    made.issue("operator", Role.OPERATOR, "olga")
    for silo in ("s0", "s1"):
        made.issue(f"silo/{silo}", Role.SILO, silo)
    return made


@contextmanager
def running(ca: Authority, folder: Path, **settings: object) -> Iterator[Federation]:
    tables = {f"s{k}": write_table(folder / f"s{k}.parquet", 200, k) for k in range(2)}
    fed = Federation(folder, tables, make_certificates=False, **settings)
    try:
        fed.start_coordinator()
        yield fed
    finally:
        fed.stop()


def publish(fed: Federation, pem: bytes) -> None:
    certificates.write(fed.folder / "pki/coordinator/ca.crl", pem)


def agent_of(fed: Federation, paths: IdentityPaths) -> FederationClient:
    channel = dial(fed.address, channel_credentials(paths), Metrics())
    return FederationClient(channel, fed.address, lambda *_: None)


# --- at the coordinator ---


def test_a_revoked_certificate_leaves_a_line_in_the_trail_and_a_foreign_one_in_grpc_s_log(
    ca: Authority, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    stolen = IdentityPaths.of(tmp_path / "pki/silo/s0")
    foreign = Authority.make(tmp_path / "other-ca", tmp_path / "foreign")
    stranger = foreign.issue("silo/s0", Role.SILO, "s0")
    tables = {"s0": write_table(tmp_path / "s0.parquet", 10, 0)}
    fed = Federation(tmp_path, tables, make_certificates=False, audit=str(path))
    fed.own["coordinator"] = {"GRPC_VERBOSITY": "info"}
    try:
        fed.start_coordinator()
        publish(fed, ca.revoke("silo/s0"))
        wait_until(lambda: "revocation-list" in path.read_text(), 60, "the list is read")
        with pytest.raises(Unauthorised, match="revoked"):
            agent_of(fed, stolen).register(Registration("i", version("hedgerow"), (), 0))
        wait_until(lambda: "call-refused" in path.read_text(), 60, "it is on record")
        refused = [json.loads(one) for one in path.read_text().splitlines() if "call-ref" in one]
        assert [(one["user.name"], one["source.ip"]) for one in refused] == [("s0", "127.0.0.1")]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(stranger.certificate, stranger.key)
        to = ("127.0.0.1", fed.ports["coordinator"]["port"])
        with (
            suppress(OSError),
            socket.create_connection(to) as raw,
            context.wrap_socket(raw) as connection,
        ):
            assert not connection.recv(1)
        wait_until(
            lambda: "CERTIFICATE_VERIFY_FAILED" in fed.log("coordinator"), 60, "it is in the log"
        )
        assert path.read_text().count("call-refused") == 1  # TLS has refused it before any call
    finally:
        fed.stop()


def test_a_revoked_silo_is_refused_on_its_open_connection_and_its_open_call_ends(
    ca: Authority, tmp_path: Path
) -> None:
    stolen = IdentityPaths.of(tmp_path / "pki/silo/s0")
    with running(ca, tmp_path) as fed:
        silo = agent_of(fed, stolen)
        lease = silo.register(Registration("i", version("hedgerow"), (), 0)).lease_id
        failures: list[FederationError] = []

        def wait() -> None:
            try:
                while True:
                    silo.await_assignment(lease, (), lambda: False)
            except FederationError as error:
                failures.append(error)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        publish(fed, ca.revoke("silo/s0"))
        waiting.join(200)
        (failure,) = failures
        assert isinstance(failure, Unauthorised)
        assert "revoked" in str(failure)
        with pytest.raises(Unauthorised, match="revoked this certificate of silo s0"):
            silo.renew(lease, Heartbeat())
        # The silo itself goes on with a new key.
        again = agent_of(fed, ca.issue("silo/s0-again", Role.SILO, "s0"))
        wait_until(lambda: registered(again), 60, "the thief's lease has ended")


def registered(silo: FederationClient) -> bool:
    try:
        silo.register(Registration("j", version("hedgerow"), (), 0))
    except FederationError:
        return False
    return True


def watched(fed: Federation, job_id: str) -> tuple[threading.Thread, list[FederationError]]:
    """Watch a job that has been seen once; the list has what ends the watching."""
    failures: list[FederationError] = []
    seen = threading.Event()

    def watch() -> None:
        try:
            for _ in fed.client.watch(job_id):
                seen.set()
        except FederationError as error:
            failures.append(error)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    assert seen.wait(200)
    return watching, failures


def test_a_revoked_operator_s_open_stream_ends_and_others_go_on(
    ca: Authority, tmp_path: Path
) -> None:
    ca.issue("other", Role.OPERATOR, "oscar")
    with running(ca, tmp_path) as fed:
        job_id = fed.submit(JOB)
        watching, failures = watched(fed, job_id)
        publish(fed, ca.revoke("olga"))
        watching.join(200)
        assert [type(error) for error in failures] == [Unauthorised]
        with pytest.raises(Unauthorised, match="revoked"):
            fed.client.cancel(job_id)
        other = IdentityPaths.of(tmp_path / "pki/other")
        with grpc.secure_channel(fed.address, channel_credentials(other)) as channel:
            grpc.channel_ready_future(channel).result(120)


def test_silos_may_join_and_leave_without_a_restart(ca: Authority, tmp_path: Path) -> None:
    with running(ca, tmp_path, silos=["s0"]) as fed:
        s0, s1 = (agent_of(fed, IdentityPaths.of(tmp_path / f"pki/silo/s{k}")) for k in (0, 1))
        lease = s0.register(Registration("i", version("hedgerow"), (), 0)).lease_id
        with pytest.raises(Unauthorised, match="s1 is not on the roster"):
            s1.register(Registration("j", version("hedgerow"), (), 0))
        file = tmp_path / "coordinator.toml"
        whole = file.read_text()
        file.write_text("silos = [")  # half-written: what was stays
        s0.renew(lease, Heartbeat())
        file.write_text(whole.replace('silos = ["s0"]', 'silos = ["s1"]'))
        wait_until(lambda: registered(s1), 60, "s1 is on the roster")
        with pytest.raises(Unauthorised, match="s0 is not on the roster"):
            s0.renew(lease, Heartbeat())


def test_an_operator_sees_the_list_that_the_coordinator_has(ca: Authority, tmp_path: Path) -> None:
    with running(ca, tmp_path) as fed:
        options = ["--coordinator", fed.address, "--identity", str(tmp_path / "pki/operator")]
        kept = tmp_path / "list.crl"

        def shown() -> str:
            done = CliRunner().invoke(pki, ["revoked", *options, "--out", str(kept)])
            assert done.exit_code == 0, done.output
            return done.output

        assert "has no list" in shown()
        publish(fed, pem := ca.revoke("silo/s0"))
        serial = certificates.serial_of((tmp_path / "pki/silo/s0/tls.crt").read_bytes())
        wait_until(lambda: f"{serial:x}" in shown(), 60, "the list is there")
        assert kept.read_bytes() == pem


# --- at a silo ---


def test_an_agent_gets_the_list_from_the_coordinator_and_keeps_it(
    ca: Authority, tmp_path: Path
) -> None:
    with running(ca, tmp_path) as fed:
        publish(fed, first := ca.revoke("olga"))
        fed.start_agent("s1")
        kept = tmp_path / "state-agent-s1/revoked.crl"
        wait_until(lambda: kept.exists() and kept.read_bytes() == first, 60, "the list is there")
        publish(fed, second := ca.revoke("s0"))
        wait_until(lambda: kept.read_bytes() == second, 60, "the newer list is there")
        # A coordinator that goes back to the older list brings it to nobody.
        fed.kill("coordinator")
        publish(fed, first)
        fed.start_coordinator()
        wait_until(lambda: fed.log("agent-s1").count("registered") >= 2, 60, "it is back")
        assert kept.read_bytes() == second


def test_no_signature_of_a_revoked_silo_counts(ca: Authority, tmp_path: Path) -> None:
    own, peer = (IdentityPaths.of(tmp_path / f"pki/silo/s{k}") for k in (0, 1))
    revoked = RevokedCertificates(own)
    identity, other = FileIdentity(own, revoked=revoked), FileIdentity(peer)
    signed = other.sign(b"keys")
    identity.verify(Silo("s1"), other.certificate, b"keys", signed)
    assert revoked.take(ca.revoke("silo/s1"))
    with pytest.raises(SignatureInvalid, match="revoked"):
        identity.verify(Silo("s1"), other.certificate, b"keys", signed)
    renewed = FileIdentity(ca.issue("silo/s1", Role.SILO, "s1"))
    identity.verify(Silo("s1"), renewed.certificate, b"keys", renewed.sign(b"keys"))


def test_a_silo_may_refuse_jobs_while_its_list_is_old(ca: Authority, tmp_path: Path) -> None:
    now = [time.time()]
    paths = IdentityPaths.of(tmp_path / "pki/silo/s0")
    revoked = RevokedCertificates(paths, clock=lambda: now[0])
    policy = Policy(max_crl_age=24.0)
    with pytest.raises(PolicyDeclined, match="there is none"):
        policy.check_revoked(revoked.age)
    revoked.take(ca.revoke())
    policy.check_revoked(revoked.age)
    now[0] += 25 * 3600.0
    with pytest.raises(PolicyDeclined, match=r"max_crl_age: .*it is 25\.0 hours old"):
        policy.check_revoked(revoked.age)
    Policy().check_revoked(None)


# --- at the crypto process ---


def test_a_revoked_agent_is_refused_by_its_crypto_process(tmp_path: Path) -> None:
    ca = Authority.make(tmp_path / "ca", tmp_path / "pki")
    crypto = CryptoProcess(tmp_path)
    for place, role in (("silo/ash", Role.SILO), ("crypto/ash", Role.CRYPTO)):
        crypto.paths[place] = ca.issue(place, role, "ash")
    vault = crypto.start()
    try:
        assert vault.create_mask_key("job/1")
        certificates.write(tmp_path / "pki/crypto/ash/ca.crl", ca.revoke("silo/ash"))

        def refused() -> bool:
            try:
                vault.create_mask_key("job/2")
            except Unauthorised as error:
                return "revoked" in str(error)
            return False

        wait_until(refused, 60, "the list is in force")
    finally:
        crypto.stop(15)


def test_an_agent_that_gets_the_list_brings_it_to_its_crypto_process(tmp_path: Path) -> None:
    """The silo's old key was stolen: with it nobody uses the silo's keys any more."""
    ca = Authority.make(tmp_path / "ca", tmp_path / "pki")
    crypto = CryptoProcess(tmp_path)
    ca.issue("coordinator", Role.COORDINATOR, "coordinator")
    for place, role in (("silo/ash", Role.SILO), ("crypto/ash", Role.CRYPTO)):
        crypto.paths[place] = ca.issue(place, role, "ash")
    thief = crypto.start()
    serial = certificates.serial_of((tmp_path / "pki/silo/ash/tls.crt").read_bytes())
    ca.issue("silo/ash-again", Role.SILO, "ash")
    table = write_table(tmp_path / "ash.parquet", 200, 0)
    fed = Federation(tmp_path, {"ash": table}, make_certificates=False)
    try:
        assert thief.create_mask_key("job/1")
        fed.start_coordinator()
        address = f"127.0.0.1:{crypto.ports['port']}"
        fed.start_agent("ash", identity="silo/ash-again", crypto=address)
        publish(fed, pem := ca.revoke(f"{serial:x}"))
        kept = tmp_path / "state/revoked.crl"
        wait_until(lambda: kept.exists() and kept.read_bytes() == pem, 60, "the list is there")
        with pytest.raises(Unauthorised, match="revoked"):
            thief.create_mask_key("job/2")
        agent = channel_credentials(IdentityPaths.of(tmp_path / "pki/silo/ash-again"))
        channel = dial(address, agent, Metrics())
        bad = forged(tmp_path / "another", crypto.paths["crypto/ash"].roots.read_bytes())
        with pytest.raises(InputRefused, match="not signed by the federation's CA"):
            RemoteVault(lambda: channel, address).update_revocations(bad)
    finally:
        fed.stop()
        crypto.stop(15)


# --- at those who dial the coordinator ---


def test_a_revoked_coordinator_is_refused_by_agents_and_operators(
    ca: Authority, tmp_path: Path
) -> None:
    """Its key was stolen, and the thief answers at its address; then it has a new one."""
    other = IdentityPaths.of(tmp_path / "pki/silo/s0")
    with running(ca, tmp_path) as fed:
        fed.start_agent("s1")
        wait_until(lambda: fed.log("agent-s1").count("registered") == 1, 60, "s1 is there")
        job_id = fed.submit(JOB)
        watching, failures = watched(fed, job_id)
        # The coordinator does not show this list; the CA's owner brings it.
        pem = ca.revoke("coordinator")
        for holder in ("silo/s1", "operator"):
            certificates.write(tmp_path / "pki" / holder / "ca.crl", pem)
        watching.join(200)
        assert [type(error) for error in failures] == [Unreachable]
        said = "revoked this certificate of coordinator coordinator"
        assert said in str(failures[0])
        with pytest.raises(Unreachable, match=said):
            client_for(fed.address, tmp_path / "pki/operator", None)
        wait_until(lambda: said in fed.log("agent-s1"), 60, "s1 has refused it")
        assert not lease_held(fed, "agent-s1")
        # The old key's holder is not the server of a channel that was made for the new one.
        stolen = FileIdentity(IdentityPaths.of(tmp_path / "pki/coordinator")).certificate
        assert server_certificate(fed.address, other) == stolen
        ca.issue("coordinator", Role.COORDINATOR, "coordinator")
        wait_until(lambda: lease_held(fed, "agent-s1"), 60, "s1 is back")
        client = client_for(fed.address, tmp_path / "pki/operator", None)
        assert [view.job_id for view in client.list()] == [job_id]


def lease_held(fed: Federation, agent: str) -> bool:
    url = f"http://127.0.0.1:{fed.ports[agent]['metrics_port']}/metrics"
    with urllib.request.urlopen(url, timeout=100) as answer:
        return "hedgerow_lease_held 1.0" in answer.read().decode()


def test_a_channel_made_for_one_certificate_connects_to_no_other(
    ca: Authority, tmp_path: Path
) -> None:
    silo = IdentityPaths.of(tmp_path / "pki/silo/s0")
    new = ca.issue("new", Role.COORDINATOR, "coordinator").certificate.read_bytes()
    with running(ca, tmp_path) as fed:
        for roots, answers in ((new, False), (server_certificate(fed.address, silo), True)):
            credentials = channel_credentials(silo, roots=roots)
            channel = dial(fed.address, credentials, Metrics())
            client = FederationClient(channel, fed.address, lambda *_: None)
            with nullcontext() if answers else pytest.raises(Unreachable, match="certificate"):
                client.register(Registration("i", version("hedgerow"), (), 0))
            channel.close()


# --- lists that lie ---


def test_an_older_list_never_replaces_a_newer_one(ca: Authority, tmp_path: Path) -> None:
    paths = IdentityPaths.of(tmp_path / "pki/silo/s0")
    old, new = ca.revoke(), ca.revoke("silo/s1")
    keep = tmp_path / "kept.crl"
    revoked = RevokedCertificates(paths, keep=keep)
    assert revoked.take(new)
    assert not revoked.take(old)
    assert not revoked.take(new)
    assert len(revoked.serials) == 1
    # Nor after a restart, whatever is put in its place.
    paths.roots.with_suffix(".crl").write_bytes(old)
    again = RevokedCertificates(paths, keep=keep)
    assert (again.number, again.serials) == (revoked.number, revoked.serials)


@pytest.mark.parametrize("kind", ["forged", "altered", "silo", "certificate", "nothing", "long"])
def test_a_list_that_the_ca_has_not_signed_is_refused(
    ca: Authority, tmp_path: Path, kind: str
) -> None:
    paths = IdentityPaths.of(tmp_path / "pki/silo/s0")
    good = ca.revoke("silo/s1")
    revoked = RevokedCertificates(paths)
    revoked.take(good)
    bad = {
        "forged": lambda: forged(tmp_path / "another", paths.roots.read_bytes()),
        "altered": lambda: good[:120] + bytes([good[120] ^ 1]) + good[121:],
        "silo": lambda: forged(tmp_path / "another", paths.certificate.read_bytes()),
        "certificate": lambda: good + paths.certificate.read_bytes(),
        "nothing": lambda: b"",
        "long": lambda: good * 4000,
    }[kind]()
    with pytest.raises(IdentityUnusable, match="list"):
        revoked.take(bad)
    assert len(revoked.serials) == 1


def forged(folder: Path, named: bytes) -> bytes:
    """A list of a CA whose name is that of a certificate, under another key."""
    authority.create_authority(folder, "fed", time.time() + 86400)
    key = certificates.load_key(folder / "ca.key")
    subject = certificates.parse(named, "the certificate")[0].subject
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    now = certificates.moment(time.time() + 3600)
    builder = x509.CertificateRevocationListBuilder().issuer_name(subject)
    builder = builder.last_update(now).next_update(now.replace(year=now.year + 1))
    crl = builder.add_extension(x509.CRLNumber(1 << 40), critical=False).sign(key, hashes.SHA256())
    return crl.public_bytes(serialization.Encoding.PEM)


def test_the_ca_s_command_knows_holders_files_and_serial_numbers(
    ca: Authority, tmp_path: Path
) -> None:
    paths = IdentityPaths.of(tmp_path / "pki/silo/s0")
    revoked = RevokedCertificates(paths)
    first = certificates.serial_of(paths.certificate.read_bytes())
    second = certificates.serial_of((tmp_path / "pki/operator/tls.crt").read_bytes())
    revoked.take(ca.revoke(str(paths.certificate)))
    assert revoked.serials == {first}
    revoked.take(ca.revoke(f"{second:x}"))
    assert revoked.serials == {first, second}
    ca.issue("twin", Role.OPERATOR, "s1")
    for wrong, said in (("nobody", "is no name"), ("s1", "operator/s1 and silo/s1: say which")):
        done = CliRunner().invoke(pki, ["revoke", wrong, "--ca", str(ca.folder)])
        assert done.exit_code
        assert said in done.output.replace("\n", " ")
    revoked.take(ca.revoke("operator/s1", "silo/s1"))
    assert len(revoked.serials) == 4
