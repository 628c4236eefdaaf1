"""Phrases that are not written any more are found, with what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import words


def test_a_phrase_is_found_as_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    path = tmp_path / "crypto/a.py"
    path.parent.mkdir()
    path.write_text('"""Tell whether it is new; newhoever is a word."""\n# whoever\n')
    assert [*words.found([path])] == [
        "crypto/a.py:1: 'tell whether': write instead: return whether",
        "crypto/a.py:2: 'whoever': write instead: name the one who does it: any reader, caller, "
        "holder",
    ]


def test_every_phrase_matches_and_has_something_to_write_instead() -> None:
    for name, phrase in words.PHRASES.items():
        assert re.compile(phrase.pattern).search("") is None, name
        assert phrase.instead, name
