"""Compose's silo-0 with its keys sealed by a token of SoftHSM, and with a wrong PIN."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.containers.compose import docker, eventually, project

pytestmark = [pytest.mark.timeout(600), pytest.mark.quick]
PIN = "918273"
MAKE = """
import pkcs11, sys
token = pkcs11.lib("/hsm/libsofthsm2.so").get_token(token_label="north")
with token.open(rw=True, user_pin=sys.argv[1]) as session:
    if sys.argv[2:]:
        session.generate_key(pkcs11.KeyType.GENERIC_SECRET, 256, label="sealing", store=True,
            capabilities=pkcs11.MechanismFlag.SIGN, template={pkcs11.Attribute.EXTRACTABLE: False})
"""
FLAG = """
import pkcs11
token = pkcs11.lib("/hsm/libsofthsm2.so").get_token(token_label="north")
print(pkcs11.TokenFlag.USER_PIN_COUNT_LOW in token.flags)
"""


def library(folder: Path) -> None:
    """Put SoftHSM, what it needs and its settings into a folder."""
    places = ("usr/lib/softhsm", "usr/lib/*/softhsm")
    module = next(file for p in places for file in Path("/").glob(f"{p}/libsofthsm2.so"))
    needed = subprocess.run(["ldd", module], check=True, capture_output=True, text=True).stdout
    (folder / "tokens").mkdir(parents=True)
    for path in (str(module), *re.findall(r"=> (/\S*(?:crypto|stdc|gcc_s)\S*)", needed)):
        shutil.copy(path, folder)
    (folder / "softhsm2.conf").write_text("directories.tokendir = /hsm/tokens\n")
    here = folder.parent / "here.conf"
    here.write_text(f"directories.tokendir = {folder / 'tokens'}\n")
    program = shutil.which("softhsm2-util")
    assert program is not None, "softhsm2 is not installed: run `make services`"
    words = ["--init-token", "--free", "--label", "north", "--pin", PIN, "--so-pin", "00000000"]
    environment = {"SOFTHSM2_CONF": str(here)}
    subprocess.run([program, *words], check=True, capture_output=True, env=environment)
    subprocess.run(["chown", "-R", "10001:10001", folder], check=True)


def test_a_wrong_pin_is_tried_once_although_compose_starts_the_process_again(
    tmp_path: Path,
) -> None:
    hsm, pin = tmp_path / "hsm", tmp_path / "pin"
    tmp_path.chmod(0o755)
    library(hsm)
    pin.write_text("123456")
    uri = "pkcs11:token=north;object=sealing?module-path=/hsm/libsofthsm2.so"
    named = {"HSM_URI": uri, "HSM_FOLDER": str(hsm), "HSM_PIN_FILE": str(pin)}
    with project(tmp_path, hsm=named) as made:

        def python(script: str, *words: str) -> str:
            run = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "python3", "crypto-0")
            return made.compose(*run, "-c", script, *words).strip()

        python(MAKE, PIN, "make")
        made.up("crypto-0")
        eventually(lambda: "is not retried" in made.log("crypto-0"), 90, "it is refused")
        python(MAKE, PIN)  # the right one, by hand: the token counts anew
        told = made.log("crypto-0").count("has refused the PIN")
        eventually(
            lambda: made.log("crypto-0").count("has refused the PIN") > told + 1, 90, "more starts"
        )
        assert python(FLAG) == "False"
        pin.write_text(PIN)
        made.compose("restart", "crypto-0")
        eventually(
            lambda: made.state("crypto-0")["State"].get("Health", {}).get("Status") == "healthy",
            90, "it serves",
        )  # fmt: skip
        files = docker("exec", made.container("crypto-0"), "ls", "/var/lib/hedgerow")
        assert "sealing.key" not in files
        assert "pin.refused" not in files
