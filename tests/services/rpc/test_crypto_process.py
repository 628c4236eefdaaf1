"""The crypto process: its keys outlive it, its secrets appear nowhere."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.errors import Unreachable
from hedgerow.crypto.ciphers import elgamal
from hedgerow.crypto.ciphers.key_files import SealingSecret, open_private_key
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.paillier_keys import PrivateKey
from hedgerow.crypto.errors import HistogramRefused, PackingRefused
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.identity.certificates import change_passphrase
from hedgerow.services.identity.peers import channel_credentials
from hedgerow.services.rpc.channel import dial, wait_until_ready
from hedgerow.services.rpc.crypto import RemoteVault
from hedgerow.services.rpc.metering import Metrics

pytestmark = pytest.mark.process


class CryptoProcess:
    """``python -m crypto`` of a silo, to be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = throwaway(folder / "pki", ["ash"], time.time())
        self.process: subprocess.Popen[bytes] | None = None
        self.ports: dict[str, int] = {}

    def run(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        values = {
            "listen": "127.0.0.1:0",
            "metrics": "127.0.0.1:0",
            "identity": str(self.folder / "pki/crypto/ash"),
            "silo": "ash",
            "state": str(self.folder / "state"),
            "ready_file": str(ready),
            "log_level": "debug",
            **settings,
        }
        path = self.folder / "crypto.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hedgerow.crypto", "--config", str(path)],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )
        while not (ready.exists() and ready.read_text()) and self.process.poll() is None:
            time.sleep(0.02)
        if self.process.poll() is None:
            self.ports = json.loads(ready.read_text())

    def start(self, environment: Mapping[str, str] | None = None, **settings: Any) -> RemoteVault:
        self.run(settings, environment or {})
        address = f"127.0.0.1:{self.ports['port']}"
        channel = dial(address, channel_credentials(self.paths["silo/ash"]), Metrics())
        wait_until_ready(channel, address, 200)
        return RemoteVault(lambda: channel, address, 200, patience_seconds=0)

    def stop(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(100)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def metrics(self) -> str:
        url = f"http://127.0.0.1:{self.ports['metrics_port']}/metrics"
        with urllib.request.urlopen(url, timeout=100) as answer:
            return answer.read().decode()


@pytest.fixture
def crypto(tmp_path: Path) -> Iterator[CryptoProcess]:
    process = CryptoProcess(tmp_path)
    yield process
    if process.process is not None and process.process.poll() is None:
        process.stop(signal.SIGKILL)


def spellings(secret: int | bytes) -> set[bytes]:
    """The ways in which a secret would be seen in a text or file; long ones by their middle."""
    if isinstance(secret, bytes):
        return {secret, secret.hex().encode(), base64.b64encode(secret)[:-4]}
    size = (secret.bit_length() + 7) // 8
    little, big = secret.to_bytes(size, "little"), secret.to_bytes(size, "big")
    texts = {f"{secret}", f"{secret:x}", f"{secret:X}", little.hex()}
    return {little, big} | {text.encode()[4:60] for text in texts}


@pytest.mark.parametrize("sealed_with", ["key file", "passphrase"])
def test_a_killed_process_loses_no_key_and_shows_none(
    crypto: CryptoProcess, sealed_with: str
) -> None:
    if sealed_with == "passphrase":
        environment = {"HEDGEROW_CRYPTO_PASSPHRASE": "correct horse battery staple"}
        secret = SealingSecret("passphrase", b"correct horse battery staple")
    else:
        environment = {}
    vault = crypto.start(environment)
    if sealed_with == "key file":
        key_file = crypto.folder / "state/sealing.key"
        assert key_file.stat().st_mode & 0o777 == 0o600
        assert key_file.parent.stat().st_mode & 0o777 == 0o700
        secret = SealingSecret("key file", key_file.read_bytes())
    public_keys = {
        scheme: vault.create_cipher_key(scheme, 2048, scheme)  # type: ignore[arg-type]
        for scheme in ("paillier", "elgamal")
    }
    layout = PairLayout.fit(n_rows=10**6, max_abs_grad=1, max_hess=1, fraction_bits=16)
    values = np.zeros((2, 1))
    with pytest.raises(HistogramRefused) as no_answer:
        vault.decrypt_histograms("paillier", layout, (), 1)
    with pytest.raises(PackingRefused) as too_large:
        vault.encrypt_gradients("elgamal", layout, values + 2, values)
    errors = [str(no_answer.value), str(too_large.value)]
    ciphertexts = {scheme: vault.encrypt_integers(scheme, [5, -7]) for scheme in public_keys}
    assert 'hedgerow_ciphertexts_total{op="encrypt"} 4.0' in crypto.metrics
    shown = crypto.metrics

    many = np.zeros((200_000, 1))
    outcome: list[BaseException] = []

    def encrypt() -> None:
        try:
            vault.encrypt_gradients("paillier", layout, many, many)
        except BaseException as error:
            outcome.append(error)

    call = threading.Thread(target=encrypt)
    call.start()
    while 'hedgerow_crypto_calls{state="open"} 1.0' not in crypto.metrics:
        time.sleep(0.02)
    crypto.stop(signal.SIGKILL)
    call.join(100)
    assert not call.is_alive()
    assert isinstance(outcome[0], Unreachable), outcome
    errors.append(str(outcome[0]))

    vault = crypto.start(environment)
    for scheme, public_key in public_keys.items():
        assert vault.create_cipher_key(scheme, 2048, scheme) == public_key  # type: ignore[arg-type]
        assert vault.decrypt_integers(scheme, ciphertexts[scheme]) == [5, -7]
    assert crypto.stop(signal.SIGTERM) == 0

    hidden: set[bytes] = spellings(secret.value)
    files = sorted((crypto.folder / "state/keys").glob("*.key"))
    assert len(files) == 2
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600
        key = open_private_key(path.read_bytes(), secret)
        parts = (key.p, key.q) if isinstance(key, PrivateKey) else (key.x1, key.x2)
        assert isinstance(key, PrivateKey | elgamal.ElGamalPrivateKey)
        for part in parts:
            hidden |= spellings(part)
    seen = {
        "log": crypto.log.encode(),
        "metrics": shown.encode(),
        "errors": "\n".join(errors).encode(),
        **{path.name: path.read_bytes() for path in files},
    }
    assert "listening" in crypto.log
    for name, text in seen.items():
        assert not any(spelling in text for spelling in hidden), name


def test_a_wrong_passphrase_ends_the_start_and_is_not_shown(crypto: CryptoProcess) -> None:
    vault = crypto.start({"HEDGEROW_CRYPTO_PASSPHRASE": "the right passphrase"})
    vault.create_cipher_key("job", scheme="elgamal")
    crypto.stop(signal.SIGTERM)
    for environment, settings, said in (
        ({"HEDGEROW_CRYPTO_PASSPHRASE": "some other phrase"}, {}, "wrong passphrase, or a damaged"),
        ({}, {}, "sealed with a passphrase, received a key file"),
        ({"HEDGEROW_CRYPTO_PASSPHRASE": "short"}, {}, "a passphrase of at least 12 bytes"),
        ({}, {"key_file": "/nowhere/key"}, "/nowhere/key: cannot be read"),
        (
            {},
            {"passphrase": "long enough, but", "key_file": "both"},
            "key_file and passphrase are set",
        ),
    ):
        crypto.run(settings, environment)
        assert crypto.process is not None
        assert crypto.process.wait(100) == 2
        assert said in crypto.log
    for phrase in ("right passphrase", "other phrase", "short", "long enough"):
        assert phrase not in crypto.log


def test_a_process_with_an_encrypted_tls_key_serves_is_probed_and_says_what_is_wrong(
    crypto: CryptoProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    phrase = "a phrase for the keys"
    secret = crypto.folder / "secret"
    secret.write_text(phrase + "\n")
    for paths in crypto.paths.values():
        change_passphrase(paths.key, phrase.encode())
    for environment, settings, said in (
        ({}, {}, "tls.key is encrypted: give its passphrase"),
        ({"HEDGEROW_KEY_PASSPHRASE": "some other phrase"}, {}, "does not open"),
        ({}, {"key_passphrase_file": "/nowhere/secret"}, "/nowhere/secret cannot be read"),
    ):
        crypto.run(settings, environment)
        assert crypto.process is not None
        assert crypto.process.wait(100) == 2
        assert said in crypto.log
    monkeypatch.setenv("HEDGEROW_KEY_PASSPHRASE_FILE", str(secret))
    crypto.start({"HEDGEROW_KEY_PASSPHRASE_FILE": ""}, key_passphrase_file=str(secret))
    identity = crypto.folder / "pki/crypto/ash"
    probe = [sys.executable, "-m", "hedgerow.services.process.probe"]
    asked = [f"localhost:{crypto.ports['port']}", "--identity", str(identity)]
    assert subprocess.run([*probe, *asked], check=False).returncode == 0
    crypto.stop(signal.SIGTERM)
    assert phrase not in crypto.log


def test_the_process_leaves_no_core_file(crypto: CryptoProcess) -> None:
    crypto.start()
    assert crypto.process is not None
    limits = Path(f"/proc/{crypto.process.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert line.split()[4:6] == ["0", "0"]
