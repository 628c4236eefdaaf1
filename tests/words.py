"""The project's words: phrases that ``make lint`` refuses, and what to write instead.

``python -m tests.words`` looks through the packages, the protos and the pages. What a package still
has of a phrase is in ``tests/words.toml``, and only becomes less: ``--shrink`` lowers the numbers.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = Path(__file__).with_suffix(".toml")
FOLDERS = (
    "boosting",
    "client_agent",
    "coordinator",
    "crypto",
    "docs",
    "hedgerow",
    "proto",
    "services",
)
KINDS = {".c", ".h", ".md", ".proto", ".py"}
LEFT_OUT = re.compile(r"_pb2|docs/(api|results|_build)/|CHANGELOG|docs/(licences|style)\.md")


class Phrase(NamedTuple):
    """A phrase, in lower case and from where a word begins, and what to write instead."""

    pattern: str
    instead: str


PHRASES = {
    # whole sentences of the dialect, by what is odd in them
    "never was": Phrase(r"that never was\b", "dummy"),
    "keep out": Phrase(r"keeps? nobody out\b", "say what is limited, and against what"),
    "let go": Phrase(r"let(s|ting)? go of\b", "free"),
    "long as the table": Phrase(r"as long as the table\b", "row-sized"),
    "say none": Phrase(r"until (they|it) says? none\b", "name the value that ends it"),
    "like this one": Phrase(r"parts? like this one\b", "such histograms"),
    "tried again": Phrase(r"tried again\b", "retried"),
    "entered anew": Phrase(r"has entered anew\b", "re-enters"),
    "freed memory": Phrase(r"megabytes of freed memory\b", "freed heap, returned (malloc_trim)"),
    "once told": Phrase(r"once it was told so\b", "leave it out"),
    "leave a parent": Phrase(r"leave a parent's\b", "after a fork, detach from it"),
    "begin, end": Phrase(r'"""(begin|end)\."""', "say what starts or ends, or nothing"),
    # words that no engineer of the field writes
    "so many": Phrase(r"so many\b", "the parameter's own name: `n` rows, `n_silos` parties"),
    "for good": Phrase(r"for good\b", "permanently; until cancelled"),
    "tell whether": Phrase(r"tell whether\b", "return whether"),
    "whoever": Phrase(r"whoever\b", "name the one who does it: any reader, caller, holder"),
    "anew": Phrase(r"anew\b", "again; from the start; new"),
    "whatever": Phrase(r"whatever\b", "any; all; regardless of"),
}


class Found(NamedTuple):
    """A phrase that a line has."""

    package: str
    phrase: str
    path: Path
    line: int


def package_of(path: Path) -> str:
    """Return the folder whose numbers a file counts to: two levels where a package has rooms."""
    folders = path.relative_to(ROOT).parent.parts or (path.name,)
    depth = 3 if folders[:2] == ("boosting", "strategies") else 1 if folders[0] == "docs" else 2
    return "/".join(folders[:depth])


def found(paths: list[Path]) -> Iterator[Found]:
    """Yield each phrase of these files."""
    patterns = {name: re.compile(phrase.pattern) for name, phrase in PHRASES.items()}
    for path in paths:
        text = path.read_text(encoding="utf-8").lower()
        for name, pattern in patterns.items():
            for match in pattern.finditer(text):
                if re.match(r"\w", text[match.start() - 1 : match.start()]):
                    continue  # here and not in the pattern, whose search is ten times as fast so
                line = text.count("\n", 0, match.start()) + 1
                yield Found(package_of(path), name, path, line)


def sources() -> list[Path]:
    """Return all files that are looked through."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return sorted(
        path
        for path in [*files, *ROOT.glob("*.md")]
        if path.suffix in KINDS and not LEFT_OUT.search(path.relative_to(ROOT).as_posix())
    )


def too_many(hits: list[Found], allowed: dict[str, dict[str, int]]) -> Iterator[str]:
    """Yield a line for each phrase of which a package has more than it may."""
    counts = Counter((hit.package, hit.phrase) for hit in hits)
    for (package, phrase), count in sorted(counts.items()):
        most = allowed.get(package, {}).get(phrase, 0)
        if count > most:
            where = [hit for hit in hits if (hit.package, hit.phrase) == (package, phrase)]
            places = " ".join(f"{hit.path.relative_to(ROOT)}:{hit.line}" for hit in where)
            instead = PHRASES[phrase].instead
            yield f"{package}: '{phrase}' {count} times, at most {most}: {instead}\n  {places}"


def shrunk(hits: list[Found], allowed: dict[str, dict[str, int]]) -> str:
    """Return the file of what is allowed, no number larger than it was."""
    counts = Counter((hit.package, hit.phrase) for hit in hits)
    lines = ["# Phrases of tests/words.py that packages still have; numbers only become less."]
    for package in sorted(allowed):
        left = {p: min(n, counts[package, p]) for p, n in allowed[package].items()}
        if any(left.values()):
            lines += ["", f'["{package}"]']
            lines += [f'"{phrase}" = {n}' for phrase, n in sorted(left.items()) if n]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print what is too much; 1 where there is any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shrink", action="store_true", help="lower the numbers of words.toml")
    given = parser.parse_args()
    allowed = tomllib.loads(ALLOWED.read_text(encoding="utf-8"))
    hits = [*found(sources())]
    lines = [*too_many(hits, allowed)]
    print("\n".join(lines) or f"words: {len(hits)} phrases left to replace", flush=True)
    if given.shrink:
        ALLOWED.write_text(shrunk(hits, allowed), encoding="utf-8")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
