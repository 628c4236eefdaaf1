import json
import time

import pytest
from click.testing import CliRunner

from hedgerow.coordinator.operator.commands.pki import pki
from hedgerow.services.identity import authority
from hedgerow.services.identity.certificates import IdentityPaths, Role, load_identity


def run(*arguments, code=0):
    result = CliRunner().invoke(pki, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture
def folders(tmp_path):
    run("init", "--federation", "fed", "--dir", tmp_path / "ca")
    run("request", "--federation", "fed", "--role", "coordinator", "--name", "c",
        "--dir", tmp_path / "c")  # fmt: skip
    run("sign", tmp_path / "c" / "tls.csr", "--ca", tmp_path / "ca", "--role", "coordinator",
        "--name", "c", "--host", "localhost", "--days", "2")  # fmt: skip
    (tmp_path / "c" / "ca.crt").write_bytes((tmp_path / "ca" / "ca.crt").read_bytes())
    return tmp_path


def test_init_request_and_sign_make_a_working_identity(folders):
    subject = load_identity(IdentityPaths.of(folders / "c"), time.time())
    assert subject.uri == "hedgerow://fed/coordinator/c"
    assert subject.not_after - time.time() == pytest.approx(2 * 86400, abs=60)


@pytest.mark.parametrize("new_key", [False, True])
def test_renewal_keeps_the_holder_and_extends_the_life(folders, new_key):
    key = folders / "c" / "tls.key"
    before = key.read_bytes()
    told = run("renew", "--dir", folders / "c", *(["--new-key"] if new_key else []))
    assert "--role coordinator --name c --host localhost" in told
    run("sign", folders / "c" / "tls.csr", "--ca", folders / "ca", "--role", "coordinator",
        "--name", "c", "--host", "localhost", "--out", folders / "answer.crt")  # fmt: skip
    run("renew", "--dir", folders / "c", "--certificate", folders / "answer.crt")
    subject = load_identity(IdentityPaths.of(folders / "c"), time.time())
    assert subject.not_after - time.time() > 29 * 86400
    assert (key.read_bytes() != before) == new_key


def test_show_tells_holder_hosts_and_days_left(folders):
    facts = json.loads(run("show", folders / "c", "--json"))
    assert facts["uri"] == "hedgerow://fed/coordinator/c"
    assert facts["hosts"] == ["localhost"]
    assert facts["days_left"] == pytest.approx(2, abs=0.1)
    assert facts["problem"] == ""
    assert "hedgerow://fed/coordinator/c" in run("show", folders / "c" / "tls.crt")


def test_show_fails_for_an_expired_certificate(folders):
    pem = authority.sign_request(
        folders / "ca",
        (folders / "c" / "tls.csr").read_bytes(),
        Role.COORDINATOR,
        "c",
        now=time.time() - 5 * 86400,
        days=2,
    )
    (folders / "c" / "tls.crt").write_bytes(pem)
    assert "expired" in json.loads(run("show", folders / "c", "--json", code=1))["problem"]


def test_bad_input_is_told_in_one_line_with_code_2(folders):
    assert "not overwritten" in run("init", "--federation", "fed", "--dir", folders / "ca", code=2)
    assert "cannot be read" in run(
        "sign",
        folders / "none.csr",
        "--ca",
        folders / "ca",
        "--role",
        "silo",
        "--name",
        "a",
        code=2,
    )
    assert "was made for" in run(
        "sign", folders / "c" / "tls.csr", "--ca", folders / "ca", "--role", "silo", "--name", "c",
        code=2,
    )  # fmt: skip
    (folders / "junk").write_text("junk")
    assert "PEM" in run("show", folders / "junk", code=2)
    assert "PEM" in run("renew", "--dir", folders / "c", "--certificate", folders / "junk", code=2)
