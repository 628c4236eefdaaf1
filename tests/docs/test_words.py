"""Phrases that are not written any more: found, counted, and only ever fewer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import words


@pytest.fixture
def hits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[words.Found]:
    """Two phrases in one package of a tree of its own."""
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "crypto").mkdir()
    path = tmp_path / "crypto/a.py"
    path.write_text('"""Tell whether it is new; newhoever is a word."""\n# whoever\n')
    return [*words.found([path])]


def test_a_phrase_is_found_as_a_word_and_counted_to_its_package(hits: list[words.Found]) -> None:
    assert [(hit.package, hit.phrase, hit.line) for hit in hits] == [
        ("crypto", "tell whether", 1),
        ("crypto", "whoever", 2),
    ]
    assert [*words.too_many(hits, {"crypto": {"whoever": 1, "tell whether": 1}})] == []


def test_one_more_than_a_package_may_have_is_named_with_its_lines(hits: list[words.Found]) -> None:
    [line] = words.too_many(hits, {"crypto": {"whoever": 1}})
    assert re.match(r"crypto: 'tell whether' 1 times, at most 0: .*\n  crypto/a.py:1$", line)


def test_numbers_shrink_and_never_grow(hits: list[words.Found]) -> None:
    text = words.shrunk(hits, {"crypto": {"whoever": 5}, "boosting": {"anew": 2}})
    assert text.split("\n\n")[1:] == ['["crypto"]\n"whoever" = 1\n']


def test_every_phrase_matches_and_has_something_to_write_instead() -> None:
    for name, phrase in words.PHRASES.items():
        assert re.compile(phrase.pattern).search("") is None, name
        assert phrase.instead, name
