"""The test vectors are what the code makes."""

from __future__ import annotations

import json

import pytest

from hedgerow.crypto.errors import KeyRejected
from hedgerow.crypto.paillier_keys import PublicKey
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
