import random
import socket
import ssl
import stat
import subprocess
import sys
import time
from concurrent import futures
from contextlib import contextmanager, suppress

import grpc
import pytest

from hedgerow.boosting.errors import (
    SignatureInvalid,
    Unauthorised,
)
from hedgerow.services.identity import authority, certificates
from hedgerow.services.identity.certificates import IdentityPaths, IdentityUnusable, Role
from hedgerow.services.identity.peers import (
    FileIdentity,
    channel_credentials,
    peer_of,
    server_credentials,
)

DAY = 86400.0


@pytest.fixture
def ca(tmp_path):
    folder = tmp_path / "ca"
    authority.create_authority(folder, "fed", time.time())
    return folder


def make(ca, folder, role=Role.SILO, name="a", *, now=None, days=30.0, hosts=(), roots=None):
    """Go the whole way: request in the folder, sign at the CA, put the answer in place."""
    federation = certificates.federation_of(certificates.load_certificates(ca / "ca.crt")[0])
    request = authority.create_request(folder, federation, role, name)
    pem = authority.sign_request(
        ca,
        request.read_bytes(),
        role,
        name,
        now=time.time() if now is None else now,
        days=days,
        hosts=hosts,
    )
    paths = IdentityPaths.of(folder)
    paths.certificate.write_bytes(pem)
    paths.roots.write_bytes(((roots or ca) / "ca.crt").read_bytes())
    return paths


def make_server(ca, folder, **changes):
    return make(ca, folder, Role.COORDINATOR, "c", hosts=["localhost", "127.0.0.1"], **changes)


class WhoAmI(grpc.GenericRpcHandler):
    def service(self, details):
        def answer(request, context):
            try:
                return peer_of(context).require(Role.SILO).encode()
            except Unauthorised as error:
                context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def serving(paths):
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((WhoAmI(),))
    if paths is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", server_credentials(paths))
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait()


def ask(port, credentials):
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"localhost:{port}", credentials, options) as channel:
        return channel.unary_unary("/who/ami")(b"", timeout=100).decode()


def raw_credentials(paths, roots=None):
    """Credentials without our own checks, as a careless or hostile client has them."""
    return grpc.ssl_channel_credentials(
        (roots or paths.roots).read_bytes(),
        paths.key.read_bytes(),
        paths.certificate.read_bytes(),
    )


def refused(port, credentials):
    with pytest.raises(grpc.RpcError) as caught:
        ask(port, credentials)
    return caught.value.code()


@pytest.mark.process
def test_the_peers_name_is_that_of_its_certificate(ca, tmp_path):
    server, silo = make_server(ca, tmp_path / "s"), make(ca, tmp_path / "a", name="hospital-a")
    with serving(server) as port:
        assert ask(port, channel_credentials(silo)) == "hospital-a"


@pytest.mark.process
def test_a_client_without_certificate_is_refused_at_the_handshake(ca, tmp_path):
    server = make_server(ca, tmp_path / "s")
    with serving(server) as port:
        bare = grpc.ssl_channel_credentials((ca / "ca.crt").read_bytes())
        assert refused(port, bare) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.process
def test_a_certificate_of_a_foreign_ca_is_refused_at_the_handshake(ca, tmp_path):
    server = make_server(ca, tmp_path / "s")
    foreign = tmp_path / "foreign"
    authority.create_authority(foreign, "fed", time.time())
    silo = make(foreign, tmp_path / "a", roots=ca)
    with pytest.raises(IdentityUnusable, match="CA that is not the federation's"):
        channel_credentials(silo)
    with serving(server) as port:
        assert refused(port, raw_credentials(silo)) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.process
def test_an_expired_certificate_is_refused_at_the_handshake(ca, tmp_path):
    server = make_server(ca, tmp_path / "s")
    silo = make(ca, tmp_path / "a", now=time.time() - 3 * DAY, days=2)
    with pytest.raises(IdentityUnusable, match=r"tls\.crt: expired on .* UTC; renew it"):
        channel_credentials(silo)
    with serving(server) as port:
        assert refused(port, raw_credentials(silo)) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.process
def test_a_certificate_of_another_role_is_refused_by_the_call(ca, tmp_path):
    server = make_server(ca, tmp_path / "s")
    operator = make(ca, tmp_path / "o", Role.OPERATOR, "olga")
    with serving(server) as port:
        with pytest.raises(grpc.RpcError) as caught:
            ask(port, channel_credentials(operator))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert caught.value.details() == (
            "this call is for the role silo; the certificate is of operator olga"
        )


@pytest.mark.process
def test_a_silo_cannot_pose_as_the_coordinator(ca, tmp_path):
    silo = make(ca, tmp_path / "a", hosts=["localhost"])
    client = make(ca, tmp_path / "b", name="b")
    with serving(silo) as port:
        assert refused(port, channel_credentials(client)) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.process
def test_a_server_under_another_host_name_is_refused(ca, tmp_path):
    server = make(ca, tmp_path / "s", Role.COORDINATOR, "c", hosts=["elsewhere.example"])
    client = make(ca, tmp_path / "a")
    with serving(server) as port:
        assert refused(port, channel_credentials(client)) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.process
def test_a_server_takes_a_new_certificate_and_a_second_ca_while_it_runs(ca, tmp_path):
    server = make_server(ca, tmp_path / "s")
    old_silo = make(ca, tmp_path / "a")
    next_ca = tmp_path / "next-ca"
    authority.create_authority(next_ca, "fed", time.time())
    new_silo = make(next_ca, tmp_path / "b", name="b", roots=ca)
    with serving(server) as port:
        assert ask(port, channel_credentials(old_silo)) == "a"
        assert refused(port, raw_credentials(new_silo)) is grpc.StatusCode.UNAVAILABLE
        # roll-over, first half: the server trusts both CAs
        both = (ca / "ca.crt").read_bytes() + (next_ca / "ca.crt").read_bytes()
        certificates.write(server.roots, both)
        assert ask(port, raw_credentials(new_silo)) == "b"
        assert ask(port, channel_credentials(old_silo)) == "a"
        # second half: its own certificate, with a new key, is of the new CA, the old CA goes
        request = authority.create_request(
            tmp_path / "s", "fed", Role.COORDINATOR, "c", key_name="tls.key.next"
        )
        answer = authority.sign_request(
            next_ca,
            request.read_bytes(),
            Role.COORDINATOR,
            "c",
            now=time.time(),
            hosts=["localhost"],
        )
        authority.install(tmp_path / "s", answer, time.time())
        certificates.write(server.roots, (next_ca / "ca.crt").read_bytes())
        assert ask(port, raw_credentials(new_silo, next_ca / "ca.crt")) == "b"
        assert refused(port, raw_credentials(old_silo, next_ca / "ca.crt")) is (
            grpc.StatusCode.UNAVAILABLE
        )


@pytest.mark.process
def test_a_server_keeps_what_it_has_while_its_files_do_not_fit_together(ca, tmp_path):
    server, silo = make_server(ca, tmp_path / "s"), make(ca, tmp_path / "a")
    other = make_server(ca, tmp_path / "other")
    with serving(server) as port:
        good = server.certificate.read_bytes()
        for broken in (other.certificate.read_bytes(), b"half of a certif"):
            server.certificate.write_bytes(broken)
            assert ask(port, channel_credentials(silo)) == "a"
        server.certificate.unlink()
        assert ask(port, channel_credentials(silo)) == "a"
        server.certificate.write_bytes(good)
        assert ask(port, channel_credentials(silo)) == "a"


@pytest.mark.process
def test_an_older_tls_is_refused_at_the_handshake(ca, tmp_path):
    # gRPC reads the setting when it is imported, so this needs a process that imports it afresh
    server, silo = make_server(ca, tmp_path / "s"), make(ca, tmp_path / "a")
    script = """
import sys
from concurrent import futures
from pathlib import Path
from hedgerow.services.identity.certificates import IdentityPaths
from hedgerow.services.identity.peers import server_credentials
import grpc
server = grpc.server(futures.ThreadPoolExecutor(1))
credentials = server_credentials(IdentityPaths.of(Path(sys.argv[1])))
print(server.add_secure_port("127.0.0.1:0", credentials), flush=True)
server.start()
sys.stdin.read()
server.stop(0)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "s")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        port = int(process.stdout.readline())

        def versions(most):
            context = ssl.create_default_context(cafile=str(server.roots))
            context.load_cert_chain(silo.certificate, silo.key)
            context.maximum_version = most
            context.set_alpn_protocols(["h2"])
            raw = socket.create_connection(("127.0.0.1", port), timeout=100)
            with context.wrap_socket(raw, server_hostname="localhost") as connection:
                return connection.version()

        assert versions(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            versions(ssl.TLSVersion.TLSv1_2)
        process.stdin.close()
        assert process.wait(200) == 0


class FakeContext:
    """What gRPC tells a servicer of a connection; only such a record can be expired."""

    def __init__(self, auth, peer="ipv4:127.0.0.1:5", metadata=()):
        self._auth, self._peer, self._metadata = auth, peer, metadata

    def auth_context(self):
        return self._auth

    def peer(self):
        return self._peer

    def invocation_metadata(self):
        return self._metadata


def test_a_certificate_that_expires_on_an_open_connection_is_refused_by_the_next_call(ca, tmp_path):
    pem = make(ca, tmp_path / "a").certificate.read_bytes()
    context = FakeContext({"x509_pem_cert": [pem], "ssl_tls_version": [b"TLSv1.3"]})
    assert peer_of(context).name == "a"
    with pytest.raises(Unauthorised, match="certificate of silo a has expired"):
        peer_of(context, clock=lambda: time.time() + 31 * DAY)


def test_an_older_tls_is_refused_by_the_call_as_well(ca, tmp_path):
    pem = make(ca, tmp_path / "a").certificate.read_bytes()
    context = FakeContext({"x509_pem_cert": [pem], "ssl_tls_version": [b"TLSv1.2"]})
    with pytest.raises(Unauthorised, match=r"TLS 1\.3 is required; the connection has TLSv1\.2"):
        peer_of(context)


@pytest.mark.process
def test_a_caller_without_tls_is_nobody_even_on_loopback():
    with (
        serving(None) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        pytest.raises(grpc.RpcError, match="shown no certificate"),
    ):
        channel.unary_unary("/who/ami")(b"", timeout=100)


def test_a_silo_signs_and_others_check_it_by_the_ca(ca, tmp_path):
    a, b = FileIdentity(make(ca, tmp_path / "a")), FileIdentity(make(ca, tmp_path / "b", name="b"))
    signature = a.sign(b"the set")
    b.verify("a", a.certificate, b"the set", signature)
    for silo, certificate, message, given, why in [
        ("b", a.certificate, b"the set", signature, "is of silo a"),
        ("a", a.certificate, b"another set", signature, "not that of silo a"),
        ("a", b.certificate, b"the set", signature, "is of silo b"),
        ("a", a.certificate, b"the set", b"", "not that of silo a"),
        ("a", b"no certificate", b"the set", signature, "no PEM certificate"),
    ]:
        with pytest.raises(SignatureInvalid, match=why):
            b.verify(silo, certificate, message, given)


def test_a_certificate_that_is_padded_is_refused_and_not_kept(ca, tmp_path):
    a = FileIdentity(make(ca, tmp_path / "a"))
    padded = b"padding\n" * certificates.MAX_CERTIFICATE_BYTES + a.certificate
    kept = certificates.subject_of.cache_info().currsize
    for read_it in (certificates.subject_of, certificates.public_key_of):
        with pytest.raises(IdentityUnusable, match="at most 65536 bytes"):
            read_it(padded)
    with pytest.raises(SignatureInvalid, match="at most 65536 bytes"):
        a.verify("a", padded, b"m", a.sign(b"m"))
    assert certificates.subject_of.cache_info().currsize == kept


def test_signatures_under_another_ca_role_or_date_prove_nothing(ca, tmp_path):
    b = FileIdentity(make(ca, tmp_path / "b", name="b"))
    foreign = tmp_path / "foreign"
    authority.create_authority(foreign, "fed", time.time())
    stranger = FileIdentity(make(foreign, tmp_path / "x"))
    with pytest.raises(SignatureInvalid, match="CA that is not the federation's"):
        b.verify("a", stranger.certificate, b"m", stranger.sign(b"m"))
    operator = FileIdentity(make(ca, tmp_path / "o", Role.OPERATOR, "a"))
    with pytest.raises(SignatureInvalid, match="is of operator a"):
        b.verify("a", operator.certificate, b"m", operator.sign(b"m"))
    a = FileIdentity(make(ca, tmp_path / "a"))
    later = FileIdentity(IdentityPaths.of(tmp_path / "b"), clock=lambda: time.time() + 29 * DAY)
    later.verify("a", a.certificate, b"m", a.sign(b"m"))
    later._clock = lambda: time.time() + 31 * DAY
    with pytest.raises(SignatureInvalid, match="expired"):
        later.verify("a", a.certificate, b"m", a.sign(b"m"))


def test_the_ca_takes_only_the_key_from_a_request(ca, tmp_path):
    request = authority.create_request(tmp_path / "a", "fed", Role.SILO, "a").read_bytes()
    for role, name in ((Role.COORDINATOR, "a"), (Role.SILO, "b")):
        with pytest.raises(IdentityUnusable, match="request was made for hedgerow://fed/silo/a"):
            authority.sign_request(ca, request, role, name, now=time.time())
    pem = authority.sign_request(
        ca, request, Role.SILO, "a", now=time.time(), hosts=["a.example", "10.1.2.3"]
    )
    assert certificates.hosts_of(pem) == ("a.example", "10.1.2.3")


@pytest.mark.parametrize("days", [0.5, 31, float("nan")])
def test_lives_outside_a_day_and_thirty_days_are_refused(ca, tmp_path, days):
    with pytest.raises(IdentityUnusable, match="between 1 and 30 days"):
        make(ca, tmp_path / "a", days=days)


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a b", "a" * 64, "-a", "é"])
def test_names_that_a_uri_cannot_hold_are_refused(ca, tmp_path, name):
    with pytest.raises(IdentityUnusable, match="letters, digits"):
        authority.create_request(tmp_path / "a", "fed", Role.SILO, name)


def test_keys_and_folders_are_private_and_an_existing_ca_is_kept(ca, tmp_path):
    paths = make(ca, tmp_path / "a")
    for path in (ca / "ca.key", paths.key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    before = (ca / "ca.key").read_bytes()
    with pytest.raises(IdentityUnusable, match="not overwritten"):
        authority.create_authority(ca, "fed", time.time())
    assert (ca / "ca.key").read_bytes() == before


def test_a_certificate_for_another_key_or_holder_is_not_put_into_use(ca, tmp_path):
    paths, other = make(ca, tmp_path / "a"), make(ca, tmp_path / "b", name="b")
    before = paths.certificate.read_bytes()
    with pytest.raises(IdentityUnusable, match="silo/b, not hedgerow://fed/silo/a"):
        authority.install(tmp_path / "a", other.certificate.read_bytes(), time.time())
    twin = make(ca, tmp_path / "twin")
    with pytest.raises(IdentityUnusable, match="does not belong to the key"):
        authority.install(tmp_path / "a", twin.certificate.read_bytes(), time.time())
    assert paths.certificate.read_bytes() == before


@pytest.mark.process
def test_throwaway_identities_work_and_leave_no_ca_key(tmp_path):
    made = authority.throwaway(tmp_path / "t", ["a", "b"], time.time())
    assert set(made) == {"coordinator", "operator", "silo/a", "silo/b", "crypto/a", "crypto/b"}
    with serving(made["coordinator"]) as port:
        assert ask(port, channel_credentials(made["silo/b"])) == "b"
    with serving(made["crypto/a"]) as port:
        assert ask(port, channel_credentials(made["silo/a"])) == "a"
    keys = list((tmp_path / "t").rglob("*.key"))
    assert len(keys) == 6
    assert all(stat.S_IMODE(p.parent.stat().st_mode) == 0o700 for p in keys)


@pytest.mark.parametrize("name", ["tls.key", "tls.crt", "ca.crt"])
def test_missing_and_malformed_files_are_named(ca, tmp_path, name):
    make(ca, tmp_path / "a")
    path = tmp_path / "a" / name
    path.write_bytes(b"nonsense")
    with pytest.raises(IdentityUnusable, match="PEM"):
        channel_credentials(IdentityPaths.of(tmp_path / "a"))
    path.unlink()
    with pytest.raises(IdentityUnusable, match=f"{name} cannot be read: No such file"):
        channel_credentials(IdentityPaths.of(tmp_path / "a"))
    with pytest.raises(IdentityUnusable, match=f"{name} cannot be read: No such file"):
        server_credentials(IdentityPaths.of(tmp_path / "a"))


def test_damaged_keys_and_certificates_are_refused_in_words(ca, tmp_path):
    paths = make_server(ca, tmp_path / "c")
    rng = random.Random(0)
    for path in (paths.key, paths.certificate, paths.roots):
        whole = path.read_bytes()
        for _ in range(200):
            at, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            with suppress(IdentityUnusable):  # what a flip of line ends leaves is whole
                certificates.load_identity(paths, time.time())
        path.write_bytes(whole)
