"""The walk-throughs work: each is done in a copy of the repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "api", "build", "dist", "node_modules", "results", "runs"
)


class Clone:
    """A copy of the repository, and a section of the page."""

    def __init__(self, folder: Path, heading: str) -> None:
        self.folder = folder
        for name in ("Makefile", "buf.yaml", "hatch_build.py", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        for path in (ROOT / "hedgerow").iterdir():
            if path.is_symlink() and path.name != "api":
                shutil.copytree(ROOT / path.name, folder / path.name, ignore=LEFT_OUT)
        shutil.copytree(ROOT / "hedgerow", folder / "hedgerow", symlinks=True)
        shutil.copytree(ROOT / "proto", folder / "proto")
        shutil.copytree(ROOT / "docs", folder / "docs", ignore=LEFT_OUT)
        shutil.copytree(ROOT / "tests", folder / "tests", ignore=LEFT_OUT)
        (folder / ".venv").symlink_to(sys.prefix)
        page = (ROOT / "docs/walk-throughs.md").read_text()
        [self.section] = re.findall(rf"^## {heading}.*?(?=^\(|\Z)", page, re.MULTILINE | re.DOTALL)

    def block(self, language: str) -> str:
        """Return the section's only block of a language."""
        [text] = re.findall(rf"^```{language}\n(.*?)^```", self.section, re.MULTILINE | re.DOTALL)
        return str(text)

    def run(self, *words: str, typed: str | None = None) -> str:
        """Run a command there, which must succeed."""
        done = subprocess.run(words, cwd=self.folder, input=typed, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def python(self, *words: str, typed: str | None = None) -> str:
        """Run Python there."""
        return self.run(sys.executable, *words, typed=typed)

    def change(self) -> list[str]:
        """Apply the section's diff; return the files that it names, without tests."""
        change = self.block("diff")
        self.run("git", "apply", "-C1", "-", typed=change)
        files = re.findall(r"^\+\+\+ b/(.*)", change, re.MULTILINE)
        return [file for file in files if not file.startswith("tests/")]

    def check(self) -> None:
        """Run the section's Python against the copy, and the linters over what was changed."""
        where = self.python("-c", "import hedgerow; print(hedgerow.__file__)")
        assert Path(where.strip()).is_relative_to(self.folder)
        self.python("-", typed=self.block("python"))
        self.run(".venv/bin/ruff", "check", "--no-cache", "boosting")


def test_a_metric_is_one_file(tmp_path: Path) -> None:
    clone = Clone(tmp_path, "A metric")
    assert "smape" not in clone.python("-m", "hedgerow", "help", "metrics", "regression")
    assert len(clone.change()) == 1
    clone.check()
    assert "smape" in clone.python("-m", "hedgerow", "help", "metrics", "regression")


def test_a_parameter_is_four_files_and_its_test(tmp_path: Path) -> None:
    clone = Clone(tmp_path, "A parameter")
    assert len(clone.change()) == 4
    clone.run("make", "--assume-old", "setup", "proto")
    clone.check()
    assert "tol" in clone.python("-m", "hedgerow", "help", "job.toml", "bagging")
    clone.run(".venv/bin/buf", "breaking", "--against", "proto/baseline.binpb")
    held = ("docs/test_reference.py", "docs/test_truth.py", "federation/test_no_silent_options.py")
    tests = [f"tests/{name}" for name in held]
    chosen = "bagging and (defaults or tol or each or every)"
    out = clone.python("-m", "pytest", "-p", "no:cacheprovider", "-k", chosen, *tests)
    passed = re.search(r"(\d+) passed", out)
    assert passed is not None
    assert int(passed[1]) >= 3, out


def test_a_walk_through_that_the_code_has_outgrown_fails(tmp_path: Path) -> None:
    clone = Clone(tmp_path, "A metric")
    path = clone.folder / "boosting/metrics/scores.py"
    path.write_text(path.read_text().replace("_pinball_terms(", "_other("))
    with pytest.raises(AssertionError, match="patch does not apply"):
        clone.change()
