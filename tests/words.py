"""The project's words: phrases and names that ``make lint`` refuses, and what to write instead.

``python -m tests.words`` looks through the packages, the protos and the pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
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


def found(paths: list[Path]) -> Iterator[str]:
    """Yield a line for each phrase of these files."""
    patterns = {name: re.compile(phrase.pattern) for name, phrase in PHRASES.items()}
    for path in paths:
        text = path.read_text(encoding="utf-8").lower()
        for name, pattern in patterns.items():
            for match in pattern.finditer(text):
                if re.match(r"\w", text[match.start() - 1 : match.start()]):
                    continue  # here and not in the pattern, whose search is ten times as fast so
                line = text.count("\n", 0, match.start()) + 1
                instead = PHRASES[name].instead
                yield f"{path.relative_to(ROOT)}:{line}: '{name}': write instead: {instead}"


def sources() -> list[Path]:
    """Return all files that are looked through."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return sorted(
        path
        for path in [*files, *ROOT.glob("*.md")]
        if path.suffix in KINDS and not LEFT_OUT.search(path.relative_to(ROOT).as_posix())
    )


def classes(paths: list[Path]) -> Iterator[str]:
    """Yield a line for each public class whose name another one of the packages has."""
    places: dict[str, str] = {}
    for path in paths:
        if path.suffix != ".py":
            continue
        for match in re.finditer(r"^class ([A-Z]\w*)", path.read_text(encoding="utf-8"), re.M):
            place = path.relative_to(ROOT).as_posix()
            if (first := places.setdefault(match[1], place)) != place:
                yield f"{place}: class {match[1]}: {first} has one; write instead: another name"


def main() -> int:
    """Print what is found; 1 where there is any."""
    lines = [*found(sources()), *classes(sources())]
    print("\n".join(lines) or "words: none that are not written any more", flush=True)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
