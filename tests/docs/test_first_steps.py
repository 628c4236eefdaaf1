"""Commands of the README and of the quickstart, run as they are on rows of the demo's table."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README": ROOT / "README.md", "quickstart": ROOT / "docs/quickstart.md"}
LEFT = re.compile(r"make |hedgerow (pki|init|run|join|submit|serve|console) |.*…")
"""What builds, serves, needs a federation, or leaves names to the reader."""


def commands(page: str) -> list[list[str]]:
    """Return the commands of a page that run on one machine, each as its words."""
    blocks = re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    given = [line[2:] for line in lines if line.startswith("$ ")]
    return [shlex.split(line, comments=True) for line in given if not LEFT.match(line)]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_each_command_of_a_page_works_after_those_before(name: str, tmp_path: Path) -> None:
    page, found = PAGES[name].read_text(), commands(PAGES[name].read_text())
    assert {"split", "local", "predict", "report"} <= {words[1] for words in found}
    (tmp_path / "examples/data").mkdir(parents=True)
    table = pq.read_table(ROOT / "examples/data/adult.parquet")
    pq.write_table(table.slice(0, 1500), tmp_path / "examples/data/adult.parquet")
    job = (ROOT / "examples/adult-vertical.toml").read_text()
    (tmp_path / "examples/adult-vertical.toml").write_text(fewer(job))
    for text in re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        (tmp_path / "job.toml").write_text(text)
    for words in found:
        if "job.toml" in words:
            path = tmp_path / "job.toml"
            path.write_text(fewer(path.read_text()))
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
    assert len(pq.read_table(tmp_path / "scores.parquet")) == 375


def fewer(job: str) -> str:
    """Return a job of two rounds."""
    return re.sub(r"^rounds = \d+", "rounds = 2", job, flags=re.MULTILINE)
