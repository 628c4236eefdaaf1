"""Private keys at rest may be encrypted; every process that reads them needs the passphrase."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from hedgerow.services.identity import authority, certificates, passphrases
from hedgerow.services.identity.certificates import IdentityPaths, IdentityUnusable, Role

SECRET = "a phrase of some length"
ENVIRONMENT = {"HEDGEROW_KEY_PASSPHRASE": SECRET}


def hedgerow(*arguments, environment=None):
    bare = {k: v for k, v in os.environ.items() if not k.startswith("HEDGEROW_KEY")}
    return subprocess.run(
        [sys.executable, "-m", "hedgerow", *map(str, arguments)],
        env={**bare, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.setattr(passphrases, "_typed", {})
    monkeypatch.setattr(passphrases, "_settings_file", None)
    for name in ("HEDGEROW_KEY_PASSPHRASE", "HEDGEROW_KEY_PASSPHRASE_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.process
def test_the_commands_make_and_use_encrypted_keys_where_a_passphrase_is_given(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    ca, own = tmp_path / "ca", tmp_path / "own"
    by_file = {"HEDGEROW_KEY_PASSPHRASE_FILE": str(secret)}
    made = hedgerow("pki", "init", "--federation", "f", "--dir", ca, environment=ENVIRONMENT)
    assert made.returncode == 0, made.stderr
    asked = ("pki", "request", "--federation", "f", "--role", "silo", "--name", "a", "--dir", own)
    assert hedgerow(*asked, environment=by_file).returncode == 0
    for key in (ca / "ca.key", own / "tls.key"):
        assert key.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
        assert key.stat().st_mode & 0o777 == 0o600
    sign = ("pki", "sign", own / "tls.csr", "--ca", ca, "--role", "silo", "--name", "a")
    for environment, said in (
        (None, "ca.key is encrypted: give its passphrase by key_passphrase_file"),
        ({"HEDGEROW_KEY_PASSPHRASE": "another phrase"}, "passphrase given does not open"),
        ({"HEDGEROW_KEY_PASSPHRASE_FILE": "/nowhere/secret"}, "/nowhere/secret cannot be read"),
    ):
        done = hedgerow(*sign, environment=environment)
        assert done.returncode != 0
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert "phrase of" not in done.stderr
    assert hedgerow(*sign, environment=by_file).returncode == 0
    (own / "ca.crt").write_bytes((ca / "ca.crt").read_bytes())
    assert hedgerow("pki", "show", own, environment=by_file).returncode == 0
    new = tmp_path / "new"
    new.write_text("a quite different phrase")
    change = ("pki", "passphrase", own / "tls.key", "--new-file", new)
    assert hedgerow(*change, environment=by_file).returncode == 0
    assert hedgerow("pki", "show", own, environment=by_file).returncode == 1
    by_file["HEDGEROW_KEY_PASSPHRASE_FILE"] = str(new)
    assert hedgerow("pki", "show", own, environment=by_file).returncode == 0
    change = ("pki", "passphrase", own / "tls.key", "--remove")
    assert hedgerow(*change, environment=by_file).returncode == 0
    assert hedgerow("pki", "show", own).returncode == 0
    assert b"ENCRYPTED" not in (own / "tls.key").read_bytes()


def test_a_short_passphrase_makes_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_KEY_PASSPHRASE", "short")
    with pytest.raises(IdentityUnusable, match="at least 12 bytes"):
        authority.create_authority(tmp_path / "ca", "f", time.time())
    assert not (tmp_path / "ca/ca.key").exists()


def test_a_typed_passphrase_is_asked_for_once_and_kept_only_if_it_opens(tmp_path, monkeypatch):
    authority.create_authority(tmp_path, "f", time.time())
    key = tmp_path / "ca.key"
    certificates.change_passphrase(key, SECRET.encode())
    typed = iter(["a wrong phrase", SECRET])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(typed))
    with pytest.raises(IdentityUnusable, match="does not open"):
        certificates.load_key(key)
    certificates.load_key(key)
    certificates.load_key(key)


def test_a_new_key_may_come_with_a_new_passphrase_while_a_process_runs(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"the first of two phrases")
    passphrases.use_file(secret)
    paths = authority.throwaway(tmp_path / "pki", ["a"], time.time())["silo/a"]
    certificates.change_passphrase(paths.key, secret.read_bytes())
    certificates.load_identity(paths, time.time())
    secret.write_bytes(b"the second of two phrases")
    with pytest.raises(IdentityUnusable, match="does not open"):
        certificates.load_identity(paths, time.time())
    secret.write_bytes(b"the first of two phrases")
    certificates.change_passphrase(paths.key, b"the second of two phrases")
    secret.write_bytes(b"the second of two phrases\n")
    certificates.load_identity(paths, time.time())


def test_requests_use_an_encrypted_key_that_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDGEROW_KEY_PASSPHRASE", SECRET)
    authority.create_request(tmp_path, "f", Role.SILO, "a")
    before = IdentityPaths.of(tmp_path).key.read_bytes()
    authority.create_request(tmp_path, "f", Role.SILO, "a")
    assert IdentityPaths.of(tmp_path).key.read_bytes() == before
