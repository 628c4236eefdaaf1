"""The test vectors are what the code makes."""

from __future__ import annotations

import json

import pytest

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.trees.limits import read_upload
from hedgerow.crypto.errors import KeyRejected
from hedgerow.crypto.paillier_keys import PublicKey
from tests.interop.bad_vectors import CODECS, LIMITS, refused
from tests.interop.vectors import FOLDER, text_of, vectors

MADE = vectors()


@pytest.mark.parametrize("name", MADE)
def test_a_file_of_vectors_has_what_the_code_makes(name: str) -> None:
    kept = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert kept == text_of(MADE[name]), "python -m tests.interop.vectors writes the files anew"


def test_there_are_no_other_files() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.json" for name in MADE}


def test_the_good_modulus_is_taken_and_the_bad_ones_are_not():
    keys = json.loads((FOLDER / "paillier-modulus.json").read_text(encoding="utf-8"))
    assert PublicKey.from_certified(bytes.fromhex(keys["public_key"])).bits == 2048
    for bad in keys["bad_public_keys"].values():
        with pytest.raises(KeyRejected):
            PublicKey.from_certified(bytes.fromhex(bad))


def test_every_payload_has_cases_that_its_decoder_refuses() -> None:
    cases = MADE["bad-payloads"]
    assert {case["payload"] for case in cases} == CODECS.keys()
    for case in cases:
        parts = [bytes.fromhex(part) for part in case["parts"]]
        assert refused(case["payload"], parts), (case["payload"], case["wrong"])


@pytest.mark.parametrize("case", MADE["bad-trees"], ids=lambda case: case["wrong"])
def test_a_bad_pack_is_refused(case: dict[str, str]) -> None:
    with pytest.raises(OfferRejected):
        read_upload(bytes.fromhex(case["bytes"]), LIMITS)
