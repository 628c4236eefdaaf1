"""A silo's keys sealed by one that stays in an HSM: SoftHSM, by PKCS#11."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pkcs11
import pytest
from click.testing import CliRunner
from pkcs11 import Attribute, KeyType, MechanismFlag, TokenFlag

from hedgerow.coordinator.cli import main
from hedgerow.crypto.ciphers.key_files import KeyFolder, SealingSecret
from hedgerow.crypto.ciphers.tokens import TokenSecret, TokenUri
from hedgerow.crypto.config import CryptoSettings
from hedgerow.crypto.errors import KeyRejected
from hedgerow.services.identity.certificates import IdentityPaths
from hedgerow.services.identity.peers import channel_credentials
from hedgerow.services.process.settings import SettingsInvalid
from hedgerow.services.rpc.channel import dial
from hedgerow.services.rpc.crypto import RemoteVault
from hedgerow.services.rpc.metering import Metrics
from tests.federation.processes import federation

LIBRARIES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/*/softhsm/libsofthsm2.so")
PIN = "918273"
Uri = Callable[..., str]


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Uri:
    """Make a token with two keys, one of which can be taken out; returns what names one."""
    program = shutil.which("softhsm2-util")
    assert program is not None, "softhsm2 is not installed: run `make services`"
    module = next(str(found) for one in LIBRARIES for found in Path("/").glob(one[1:]))
    (tmp_path / "tokens").mkdir()
    config, pin = tmp_path / "softhsm.conf", tmp_path / "pin"
    config.write_text(f"directories.tokendir = {tmp_path / 'tokens'}\n")
    pin.write_text(f"{PIN}\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(config))
    words = ["--init-token", "--free", "--label", "north", "--pin", PIN, "--so-pin", "00000000"]
    subprocess.run([program, *words], check=True, capture_output=True)
    library = pkcs11.lib(module)
    library.reinitialize()
    with library.get_token(token_label="north").open(rw=True, user_pin=PIN) as session:
        for label, leaves in (("sealing", False), ("loose", True)):
            session.generate_key(
                KeyType.GENERIC_SECRET, 256, label=label, store=True,
                capabilities=MechanismFlag.SIGN,
                template={Attribute.EXTRACTABLE: leaves, Attribute.SENSITIVE: not leaves},
            )  # fmt: skip

    def named(token: str = "north", key: str = "sealing", pin_file: Path = pin) -> str:
        return f"pkcs11:token={token};object={key}?module-path={module}&pin-source=file:{pin_file}"

    return named


def secret(uri: str, refused: Path) -> TokenSecret:
    return TokenSecret(TokenUri.parse(uri), refused / "pin.refused")


def token_of(settings: str, folder: Path) -> tuple[bool, str]:
    """Return what `hedgerow doctor` finds of the token that settings name."""
    done = CliRunner().invoke(main, ["doctor", str(folder / settings), "--json"])
    (found,) = [one for one in json.loads(done.output) if one["check"] == "token"]
    return found["good"], found["said"]


def test_what_a_token_seals_opens_with_that_token_only(uri: Uri, tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path / "keys", secret(uri(), tmp_path))
    folder.save_secret("a", b"value of a")
    folder.check()
    assert KeyFolder(tmp_path / "keys", secret(uri(), tmp_path)).load_secret("a") == b"value of a"
    by_file = KeyFolder(tmp_path / "keys", SealingSecret("key file", bytes(64)))
    with pytest.raises(KeyRejected, match="was sealed with a token, received a key file"):
        by_file.load_secret("a")
    token = pkcs11.lib(TokenUri.parse(uri()).module).get_token(token_label="north")
    with token.open(rw=True, user_pin=PIN) as session:
        session.get_key(label="sealing").destroy()
        session.generate_key(
            KeyType.GENERIC_SECRET, 256, label="sealing", store=True,
            capabilities=MechanismFlag.SIGN, template={Attribute.EXTRACTABLE: False},
        )  # fmt: skip
    with pytest.raises(KeyRejected, match="wrong token, or a damaged sealed key"):
        folder.load_secret("a")


def test_faults_of_a_token_are_told_apart_and_no_pin_is_said(uri: Uri, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("123456")
    library = TokenUri.parse(uri()).module
    cases = {
        uri(token="south"): "no token is called south",
        uri(key="other"): "north has no secret key other",
        uri(key="loose"): "key loose of north can be taken out",
        uri(pin_file=wrong): "north refuses the PIN in",
        uri(pin_file=tmp_path / "none"): "the PIN cannot be read",
        uri().replace(library, "/nowhere.so"): "does not answer",
    }
    for text, said in cases.items():
        with pytest.raises(KeyRejected, match=said) as refused:
            secret(text, tmp_path).key(b"salt")
        assert PIN not in str(refused.value)
        assert "123456" not in str(refused.value)


def wrong_tries(uri: str) -> bool:
    """Whether a wrong PIN was tried since the last right one, as the token says itself."""
    library = pkcs11.lib(TokenUri.parse(uri).module)
    library.reinitialize()
    return TokenFlag.USER_PIN_COUNT_LOW in library.get_token(token_label="north").flags


def test_a_wrong_pin_is_tried_once_by_all_starts_together(uri: Uri, tmp_path: Path) -> None:
    pin = tmp_path / "given"
    pin.write_text("123456")
    named = uri(pin_file=pin)
    settings = {"identity": "x", "silo": "s0", "state": str(tmp_path / "keys"), "key_uri": named}
    config = CryptoSettings.model_validate(settings)
    with pytest.raises(SettingsInvalid, match="north refuses the PIN in"):
        config.sealing_secret()
    assert wrong_tries(named)
    secret(uri(), tmp_path).key(b"salt")  # the right one, by hand: the count begins anew
    assert not wrong_tries(named)
    for _ in range(3):
        with pytest.raises(SettingsInvalid, match="which is not retried"):
            CryptoSettings.model_validate(settings).sealing_secret()
    assert not wrong_tries(named)
    with pytest.raises(KeyRejected, match="no token is called south"):  # which has refused nothing
        secret(uri(token="south", pin_file=pin), tmp_path / "keys").key(b"salt")
    assert b"123456" not in (tmp_path / "keys/pin.refused").read_bytes()
    pin.write_text(PIN)
    CryptoSettings.model_validate(settings).sealing_secret()
    assert not (tmp_path / "keys/pin.refused").exists()


@pytest.mark.parametrize(
    "text",
    ["x", "pkcs11:token=a", "pkcs11:token=a;object=b?module-path=c&pin-value=123456",
     "pkcs11:token=a;object=?module-path=c&pin-source=d", "token=a;object=b"],
)  # fmt: skip
def test_a_malformed_uri_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="key_uri: expected pkcs11:token=TOKEN") as refused:
        TokenUri.parse(text)
    assert "123456" not in str(refused.value)


def test_a_crypto_process_keeps_its_keys_by_an_hsm(uri: Uri, tmp_path: Path) -> None:
    with federation(tmp_path, 1, start=False) as fed:
        address = fed.start_crypto("s0", key_uri=uri())
        credentials = channel_credentials(IdentityPaths.of(tmp_path / "pki/silo/s0"))
        channel = dial(address, credentials, Metrics())
        vault = RemoteVault(lambda: channel, address)
        vault.create_cipher_key("watched")
        found = vault.encrypt_integers("watched", [1, 2, 3])
        fed.kill("crypto-s0")
        fed.start_crypto("s0", key_uri=uri())
        assert vault.decrypt_integers("watched", found) == [1, 2, 3]
        channel.close()
        fed.kill("crypto-s0")
        assert not (tmp_path / "keys-s0/sealing.key").exists()
        assert "sealed with a key file beside" not in fed.log("crypto-s0")
        assert token_of("crypto-s0.toml", tmp_path) == (True, "its key seals private keys")
        fed.start_crypto("s0", key_uri=uri(token="south"))
        assert not fed.alive("crypto-s0")
        good, said = token_of("crypto-s0.toml", tmp_path)
        assert not good
        assert "no token is called south" in said
        last = fed.log("crypto-s0").splitlines()[-1]
        assert "key_uri: no token is called south" in last
