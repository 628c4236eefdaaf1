"""What a kernel's library was built of; ``hatch_build.py`` runs this file without the package."""

from __future__ import annotations

import hashlib
from pathlib import Path

_HERE = Path(__file__).parent
_BUILD = _HERE.parents[2] / "hatch_build.py"


def digest_of(source: Path) -> str:
    """Return the SHA-256 of a C file, all headers and the build's own file, in hex."""
    headers = (*sorted(_HERE.glob("*.h")), *sorted(source.parent.glob("*.h")))
    content = b"".join(path.read_bytes() for path in (*headers, source, _BUILD))
    return hashlib.sha256(content).hexdigest()


def is_current(library: Path) -> bool:
    """Return whether a library was built of the C file beside it, as its ``.decl`` says."""
    declared = library.with_suffix(".decl")
    known = declared.read_text() if library.exists() and declared.exists() else ""
    return digest_of(library.with_suffix(".c")) in known


def check(library: Path) -> None:
    """Raise RuntimeError for a stale library in a checkout; elsewhere nothing is built."""
    if _BUILD.exists() and library.with_suffix(".c").exists() and not is_current(library):
        raise RuntimeError(f"{library.name} is of other sources: run `python {_BUILD.name}`")
