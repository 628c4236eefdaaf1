"""What holds for every command of ``hedgerow``."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import rich.console
from click.testing import CliRunner, Result

from hedgerow.coordinator.cli import main
from hedgerow.services.process import terminal


def every_command(
    command: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Each command with the words that call it; groups are left out."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None, name
        yield from every_command(found, (*path, name))


@pytest.mark.parametrize(("path", "command"), [*every_command()], ids=lambda it: " ".join(it)
                         if isinstance(it, tuple) else "")  # fmt: skip
def test_every_command_has_json(path: tuple[str, ...], command: click.Command) -> None:
    assert "--json" in [name for parameter in command.params for name in parameter.opts]


def test_an_error_is_one_line_and_under_json_a_document(tmp_path: Path) -> None:
    missing = str(tmp_path / "job.toml")
    done = CliRunner().invoke(main, ["plan", missing, "--silo", f"a={missing}"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"Error: {missing}: no such job file\n"
    done = CliRunner().invoke(main, ["plan", missing, "--silo", f"a={missing}", "--json"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert json.loads(done.stderr) == {"error": f"{missing}: no such job file"}


def test_an_error_of_usage_and_of_the_system_is_a_document_too(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["report", "--json"])
    assert json.loads(done.stderr) == {"error": "Missing argument 'RUN...'."}
    (tmp_path / "file").write_text("")
    words = ["pki", "init", "--federation", "f", "--dir", str(tmp_path / "file/ca"), "--json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert str(tmp_path / "file/ca") in json.loads(done.stderr)["error"]


@pytest.mark.parametrize("width", [20, 80])
def test_an_identifier_is_never_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    identifier = "0123456789abcdef0123456789abcdef"
    rows = [(identifier, "a name of several words", 12)]
    out = io.StringIO()
    shown = rich.console.Console(file=out, force_terminal=True, width=width, no_color=True)
    monkeypatch.setattr(rich.console, "Console", lambda: shown)
    terminal.listing(("job", "name", "rows"), rows, keep=("job",), right=("rows",))
    assert identifier in out.getvalue()
    assert "…" not in out.getvalue()


def test_a_table_in_a_pipe_is_plain_columns_of_full_width(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "x" * 300
    terminal.listing(("job", "rows"), [(long, 1), ("", 1234)], title="two", right=("rows",))
    wide = capsys.readouterr().out.splitlines()
    assert wide == ["two", f"job{' ' * 299}rows", f"{long}     1", f"–{' ' * 301}1234"]


def test_the_federation_in_use_is_the_default_and_options_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDGEROW_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.delenv("HEDGEROW_COORDINATOR", raising=False)
    monkeypatch.delenv("HEDGEROW_IDENTITY", raising=False)

    def hedgerow(*words: str) -> Result:
        return CliRunner().invoke(main, [*words])

    done = hedgerow("jobs")
    assert done.exit_code == 2
    assert "give --coordinator, set HEDGEROW_COORDINATOR" in done.stderr
    assert "known: none" in hedgerow("use", "trial").stderr
    for name in ("trial", "other"):
        (tmp_path / name).mkdir()
        given = ("--coordinator", f"{name}.example:7443", "--identity", str(tmp_path / name))
        assert hedgerow("use", name, *given).exit_code == 0
    assert hedgerow("use", "trial").exit_code == 0
    listed = json.loads(hedgerow("use", "--json").stdout)
    assert [(row["name"], row["in_use"]) for row in listed] == [("other", False), ("trial", True)]
    # The empty identity of the federation in use, and of an option, is what is then opened.
    assert f"{tmp_path}/trial/tls.key" in hedgerow("jobs").stderr
    named = hedgerow("jobs", "--identity", str(tmp_path / "other"))
    assert f"{tmp_path}/other/tls.key" in named.stderr
    (tmp_path / "config.toml").write_text("federations = 3\n")
    assert "expected `use` and [federations.NAME]" in hedgerow("jobs").stderr


@pytest.mark.process
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_where_the_shell_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    done = CliRunner().invoke(main, ["completion", shell, "--json"])
    assert done.exit_code == 0, done.stderr
    file = Path(json.loads(done.stdout)["file"])
    assert file.is_relative_to(tmp_path)
    assert "_HEDGEROW_COMPLETE" in file.read_text()
    printed = CliRunner().invoke(main, ["completion", shell, "--print"])
    assert printed.stdout == file.read_text() + "\n"


def test_commands_and_options_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", "hedgerow led")
    monkeypatch.setenv("COMP_CWORD", "1")
    done = CliRunner().invoke(
        main, env={"_HEDGEROW_COMPLETE": "bash_complete"}, prog_name="hedgerow"
    )
    assert done.stdout == "plain,ledger\n"


@pytest.mark.process
def test_the_limit_of_numpys_threads_is_set_before_numpy_is_imported_or_stays() -> None:
    program = (
        "import os, sys\n"
        "from hedgerow.coordinator import cli\n"
        "cli.main = lambda: print('numpy' in sys.modules, os.environ['OPENBLAS_NUM_THREADS'])\n"
        "cli.run()\n"
    )
    for given, expected in (({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")):
        others = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
        found = subprocess.run(
            [sys.executable, "-c", program],
            env=others | given, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert found.stdout.split() == ["False", expected]
