"""Write ``docs/licences.md`` from the packages' metadata: ``python -m deploy.licences``."""

from __future__ import annotations

import re
from importlib.metadata import metadata, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/licences.md"
IMAGES = {
    "crypto": ("crypto",),
    "coordinator": ("crypto", "coordinator"),
    "agent": ("crypto", "coordinator"),
    "agent-torch": ("crypto", "coordinator", "agent-torch"),
    "agent-dask": ("crypto", "coordinator", "agent-dask"),
    "console": ("crypto", "coordinator", "console"),
}
"""Lists of packages of which each image consists, as ``deploy/Dockerfile`` installs them."""
HEAD = """# Licences of other people's packages

Every package of `constraints.txt`, with the licence that its own metadata gives and the images that
contain it (`none`: for development, or for an extra that no image has). `make licences` writes this
page. Of Debian the images have Python, the libraries that it opens, and Busybox (GPL-2.0), whose
licences are in `/usr/share/doc/*/copyright`. Hedgerow's own licence is Apache-2.0.

| package | version | licence | images |
|---|---|---|---|
"""


def plain(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path) -> list[str]:
    """Return the names in a list of ``NAME==VERSION`` lines, each once: Pythons may differ."""
    lines = path.read_text().splitlines()
    return [*dict.fromkeys(line.partition("==")[0] for line in lines if "==" in line)]


def licence(name: str) -> str:
    """Return an installed package's licence: its SPDX expression, classifiers, or first line."""
    told = metadata(name)
    found = [
        kind.rpartition(" :: ")[2]
        for kind in told.get_all("Classifier") or ()
        if kind.startswith("License :: ")
    ]
    words = " ".join((told.get("License") or "").strip().partition("\n")[0].split())
    given = told.get("License-Expression") or ", ".join(sorted(set(found))) or words
    return given or f"in its {' and '.join(told.get_all('License-File') or ['files'])}"


def page() -> str:
    """Return the page's text."""
    of_list = {
        name: {plain(one) for one in pinned(ROOT / f"deploy/images/{name}.txt")}
        for name in ("crypto", "coordinator", "console", "agent-torch", "agent-dask")
    }
    of_list["agent-torch"].add("torch")  # installed by its version alone
    rows = []
    for name in sorted(pinned(ROOT / "constraints.txt"), key=plain):
        images = [
            image
            for image, lists in IMAGES.items()
            if any(plain(name) in of_list[part] for part in lists)
        ]
        where = "all" if len(images) == len(IMAGES) else ", ".join(images) or "none"
        shown = version(name).partition("+")[0]
        rows.append(f"| {plain(name)} | {shown} | {licence(name)} | {where} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
