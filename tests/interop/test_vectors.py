"""The test vectors are what the code makes."""

from __future__ import annotations

import pytest

from tests.interop.vectors import FOLDER, text_of, vectors

MADE = vectors()


@pytest.mark.parametrize("name", MADE)
def test_a_file_of_vectors_has_what_the_code_makes(name: str) -> None:
    kept = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert kept == text_of(MADE[name]), "python -m tests.interop.vectors writes the files anew"


def test_there_are_no_other_files() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.json" for name in MADE}
