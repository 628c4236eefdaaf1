"""Write what images and the wheel consist of, as CycloneDX: ``python -m deploy.sbom OUT [PYTHON]``.

One file an image, with the hashes that pip has checked, and one of the environment of PYTHON, into
which the wheel alone is installed. An image's Debian packages are not in it: its own ``dpkg`` lists
them, and the release attests them with the image. Needs ``cyclonedx-py`` on the PATH.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deploy.licences import IMAGES, ROOT


def main(out: Path, python: str | None) -> None:
    """Write all files into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    options = ("--output-reproducible", "--of", "JSON", "--pyproject", str(ROOT / "pyproject.toml"))
    for image, lists in IMAGES.items():
        lines = [(ROOT / f"deploy/images/{name}.txt").read_text() for name in lists]
        if image == "agent-torch":
            pins = (ROOT / "constraints.txt").read_text().splitlines()
            lines += [pin + "\n" for pin in pins if pin.startswith("torch==")]
        _write(out / f"image-{image}.cdx.json", ("requirements", "-", *options), "".join(lines))
    if python is not None:
        _write(out / "hedgerow.cdx.json", ("environment", python, *options))


def _write(path: Path, arguments: tuple[str, ...], stdin: str = "") -> None:
    subprocess.run(
        ["cyclonedx-py", *arguments, "-o", str(path)], input=stdin, text=True, check=True
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
