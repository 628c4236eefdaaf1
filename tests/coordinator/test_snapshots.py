"""What the command line prints, held by files: help, listings and errors of every command.

A change that is meant renews them: ``python -m tests.coordinator.test_snapshots``.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hedgerow.coordinator.cli import main
from tests.coordinator.test_cli import every_command

FOLDER = Path(__file__).parent / "snapshots"
WIDTHS = (80, 160)
_SECONDS = re.compile(  # of a plan: how fast this machine is
    r'(?<=rounds, about )[\d.]+|(?<="seconds": )[\d.e-]+|\b\d+\.\d(?=(?: │)?$)', re.MULTILINE
)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
LISTINGS = (
    ["check", "people.parquet", "--label", "label"],
    ["split", "people.parquet", "--silos", "2", "--out", "data"],
    ["plan", "job.toml", "--silo", "a=people.parquet", "--silo", "b=people.parquet"],
    ["use", "trial", "--coordinator", "c.example:7443", "--identity", "/"],
    ["use"],
    ["help", "job.toml", "dp_tree"],
    ["help", "crypto.toml"],
    ["pki", "init", "--federation", "trial", "--dir", "ca"],
)
ERRORS = (
    ["check", "none.csv", "--label", "label"],
    ["check", "people.parquet", "--label", "lable"],
    ["split", "people.parquet", "--silos", "0", "--out", "data"],
    ["local", "none.toml", "--silo", "a=people.parquet", "--out", "run"],
    ["local", "wrong.toml", "--silo", "a=people.parquet", "--out", "run"],
    ["local", "job.toml", "--silo", "people.parquet", "--out", "run"],
    ["plan", "job.toml"],
    ["jobs"],
    ["jobs", "--coordinator", "nowhere", "--identity", "me"],
    ["predict", "run", "people.parquet", "--out", "scores.txt"],
    ["ledger", "verify", "none"],
    ["privacy", "none"],
    ["pki", "show", "people.parquet"],
    ["pki", "sign", "job.toml", "--ca", "ca"],
    ["init", "accept", "none.json"],
    ["run", "me"],
    ["doctor", "none.toml"],
    ["use", "unknown"],
    ["help", "jobs.toml"],
    ["coordinator", "--config", "none.toml"],
    ["agent", "--config", "job.toml"],
    ["crypto", "--config", "wrong.toml"],
    ["unknown"],
)


def ground() -> None:
    """Write what the commands read, into the current folder."""
    n = 40
    columns = {"age": [20.0 + k for k in range(n)], "ward": ["north", "south"] * (n // 2),
               "id": list(range(n)), "label": [k % 2 for k in range(n)]}  # fmt: skip
    pq.write_table(pa.table(columns), "people.parquet")
    Path("job.toml").write_text('strategy = "bagging"\n[bagging]\nrounds = 2\n')
    Path("wrong.toml").write_text('strategy = "bagging"\n[bagging]\nround = 2\n')
    Path("me").mkdir()


def printed(words: list[str], width: int, *, terminal: bool) -> str:
    """Return a command line with what it prints, errors marked, and its exit code."""
    environment = {"COLUMNS": str(width), "HEDGEROW_CONFIG": "config.toml",
                   "HEDGEROW_COORDINATOR": None, "HEDGEROW_IDENTITY": None,
                   "FORCE_COLOR": "1" if terminal else None, "NO_COLOR": "1"}  # fmt: skip
    done = CliRunner(env=environment).invoke(main, words, prog_name="hedgerow",
                                             terminal_width=width)  # fmt: skip
    shown = _ESCAPES.sub("", done.stdout) + "".join(
        f"! {line}\n" for line in _ESCAPES.sub("", done.stderr).splitlines()
    )
    shown = _SECONDS.sub("N.N", shown.replace(os.getcwd(), "HERE"))
    lines = (line.rstrip() for line in shown.splitlines())
    return "\n".join([f"$ hedgerow {' '.join(words)}", *lines, f"[{done.exit_code}]", ""])


def helps(width: int) -> Iterator[str]:
    """Help of every command."""
    yield printed(["--help"], width, terminal=False)
    for path, _ in every_command():
        yield printed([*path, "--help"], width, terminal=False)


def listings(width: int) -> Iterator[str]:
    """Results of commands on a terminal."""
    ground()
    for words in LISTINGS:
        yield printed(words, width, terminal=True)


def piped() -> Iterator[str]:
    """The same in a pipe, and as JSON."""
    ground()
    for words in LISTINGS:
        yield printed(words, 80, terminal=False)
        Path("ca/ca.key").unlink(missing_ok=True)
        yield printed([*words, "--json"], 80, terminal=False)


def errors() -> Iterator[str]:
    """Errors, for people and as JSON."""
    ground()
    for words in ERRORS:
        yield printed(words, 80, terminal=False)
        yield printed([*words, "--json"], 80, terminal=False)


SNAPSHOTS: dict[str, Callable[[], Iterator[str]]] = {
    **{f"help-{width}": (lambda width=width: helps(width)) for width in WIDTHS},
    **{f"terminal-{width}": (lambda width=width: listings(width)) for width in WIDTHS},
    "piped": piped,
    "errors": errors,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SNAPSHOTS)
def test_what_commands_print_is_what_was_agreed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = "\n".join(SNAPSHOTS[name]())
    expected = (FOLDER / f"{name}.txt").read_text()
    assert shown == expected, "if this is meant: python -m tests.coordinator.test_snapshots"


if __name__ == "__main__":
    for each, made in SNAPSHOTS.items():
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            FOLDER.joinpath(f"{each}.txt").write_text("\n".join(made()))
