"""The test vectors are what the code makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.trees.limits import read_upload
from hedgerow.crypto.ciphers.paillier_keys import PublicKey
from hedgerow.crypto.errors import KeyRejected
from tests.interop.bad_vectors import CODECS, LIMITS, refused
from tests.interop.vectors import FOLDER, text_of, vectors


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return vectors()


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_a_file_of_vectors_has_what_the_code_makes(path: Path, made: dict[str, Any]) -> None:
    kept = path.read_text(encoding="utf-8")
    assert kept == text_of(made[path.stem]), "python -m tests.interop.vectors writes the files anew"


def test_no_file_is_missing(made: dict[str, Any]) -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.json" for name in made}


def test_the_good_modulus_is_taken_and_the_bad_ones_are_not():
    keys = json.loads((FOLDER / "paillier-modulus.json").read_text(encoding="utf-8"))
    assert PublicKey.from_certified(bytes.fromhex(keys["public_key"])).bits == 2048
    for bad in keys["bad_public_keys"].values():
        with pytest.raises(KeyRejected):
            PublicKey.from_certified(bytes.fromhex(bad))


def test_every_payload_has_cases_that_its_decoder_refuses(made: dict[str, Any]) -> None:
    cases = made["bad-payloads"]
    assert {case["payload"] for case in cases} == CODECS.keys()
    for case in cases:
        parts = [bytes.fromhex(part) for part in case["parts"]]
        assert refused(case["payload"], parts), (case["payload"], case["wrong"])


@pytest.mark.parametrize(
    "case", json.loads((FOLDER / "bad-trees.json").read_bytes()), ids=lambda case: case["wrong"]
)
def test_a_bad_pack_is_refused(case: dict[str, str]) -> None:
    with pytest.raises(OfferRejected):
        read_upload(bytes.fromhex(case["bytes"]), LIMITS)
