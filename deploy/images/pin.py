"""Write versions and hashes into the images' lists of packages: ``python -m deploy.images.pin``.

Versions are those of ``constraints.txt``; hashes those of the wheels that PyPI has for the images'
Python, for both machines. A mirror must have the same files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LISTS = tuple(
    HERE / f"{image}.txt"
    for image in ("crypto", "coordinator", "console", "agent-torch", "agent-dask")
)
PYTHON = "3.11"
MACHINES = ("x86_64", "aarch64")
LIBRARIES = ("_2_28", "_2_27", "2014", "_2_17", "1", "_2_5")
"""Of wheels that Debian 12 runs; where a package has several, one of them is enough."""


def names(path: Path) -> list[str]:
    """Return the packages of a list."""
    lines = path.read_text().splitlines()
    return [line.partition("==")[0] for line in lines if line and not line.startswith("#")]


def wheels(packages: list[str], machine: str) -> dict[str, tuple[str, str]]:
    """Return the version and the hash of each package's wheel, by its name in lower case."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder, "wanted.txt"), Path(folder, "report.json")
        wanted.write_text("\n".join(packages))
        platforms = [f"--platform=manylinux{library}_{machine}" for library in LIBRARIES]
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"),
                *("--ignore-installed", "--only-binary=:all:", "--python-version", PYTHON),
                *platforms,
                *("--target", folder, "--report", str(report)),
                *("--constraint", str(HERE.parents[1] / "constraints.txt")),
                *("--requirement", str(wanted)),
            ],
            check=True,
            env={**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""},
        )
        found = json.loads(report.read_text())["install"]
    return {
        one["metadata"]["name"].lower().replace("_", "-"): (
            one["metadata"]["version"],
            one["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for one in found
    }


def main() -> None:
    """Write all lists."""
    packages = sorted({name for path in LISTS for name in names(path)}, key=str.lower)
    found = [wheels(packages, machine) for machine in MACHINES]
    for path in LISTS:
        head = [line for line in path.read_text().splitlines() if line.startswith("#")]
        for name in names(path):
            of_machines = [wheels_of[name.lower().replace("_", "-")] for wheels_of in found]
            hashes = dict.fromkeys(f"--hash=sha256:{digest}" for _, digest in of_machines)
            head.append(f"{name}=={of_machines[0][0]} {' '.join(hashes)}")
        path.write_text("\n".join(head) + "\n")


if __name__ == "__main__":
    main()
