"""What the pages say is what the code has: parameters, defaults, commands, files."""

from __future__ import annotations

import dataclasses
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import click
import pytest

from hedgerow.boosting.ports import strategy_of
from hedgerow.boosting.strategies import NAMES
from hedgerow.client_agent.policy import Policy
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library import candidates
from hedgerow.services.process.ledgers import Entry
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "docs/strategies").glob("*.md")),
         *sorted((ROOT / "docs/adr").glob("*.md"))]  # fmt: skip
UNSET = ("none", "", "–")
NOTHING = (None, (), "", dataclasses.MISSING)
TOLD_IN_WORDS = {
    ("histogram", "threshold"),
    ("histogram", "growth"),
    ("fedxgbllr", "penalty"),
    ("fedxgbllr", "validation"),
}
"""Parameters whose default depends on something else; the page says on what."""


def tables(text: str, first: str) -> Iterator[list[str]]:
    """Rows of the tables whose first heading is ``first``, as cells."""
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == first:
            inside = True
        elif inside and not set(line) <= set("|-: "):
            yield cells


def page(strategy: str) -> str:
    return (ROOT / f"docs/strategies/{strategy}.md").read_text()


def blocks(text: str, *languages: str) -> Iterator[str]:
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language in languages:
            yield block


def literal(text: str) -> Any:
    """The value that a cell shows: TOML as it stands in a job file."""
    return tomllib.loads(f"value = {text.strip('`')}")["value"]


@pytest.mark.parametrize("strategy", NAMES)
def test_a_strategys_page_has_all_its_parameters_and_their_defaults(strategy: str) -> None:
    expected = {
        field.name: field.default for field in dataclasses.fields(strategy_of(strategy).parameters)
    }
    found: dict[str, str] = {}
    for cells in tables(page(strategy), "name"):
        names = re.findall(r"`(\w+)`", cells[0])
        shown = cells[1].split(", ") if len(names) > 1 else [cells[1]]
        if (strategy, names[0]) in TOLD_IN_WORDS:
            shown = [""]
        assert len(shown) == len(names), f"{strategy}: {cells[0]} has defaults {cells[1]}"
        found |= dict(zip(names, shown, strict=True))
    assert found.keys() == expected.keys()
    for name, shown in found.items():
        if shown in UNSET and expected[name] in NOTHING:
            continue
        assert literal(shown) == expected[name], f"{strategy}: {name} is {expected[name]!r}"


@pytest.mark.parametrize("strategy", NAMES)
def test_a_strategys_page_says_when_what_bytes_and_leak(strategy: str) -> None:
    text = page(strategy)
    for heading in ("## Parameters", "## Bytes", "## What it reveals"):
        assert f"\n{heading}\n" in text, f"{strategy} has no {heading}"
    assert f"```{{reveals}} {strategy}\n" in text
    assert re.search(r"\b[Uu]se it\b|\bwhere\b", text.split("```toml")[0])


def test_the_table_of_rules_has_every_rule_of_a_policy() -> None:
    rows = [*tables((ROOT / "docs/trust.md").read_text(), "rule")]
    assert {name for cells in rows for name in re.findall(r"`(\w+)`", cells[0])} == set(
        Policy.model_fields
    )


THREATS = (ROOT / "docs/threat-model.md").read_text()


def functions(folder: str) -> set[str]:
    """Names of all tests below a folder."""
    return {
        name
        for path in (ROOT / folder).rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("who", ["Coordinator", "Operator", "Silo", "Colluding k", "Stranger"])
def test_what_a_party_can_learn_names_tests_that_exist(who: str) -> None:
    section = THREATS.split(f"\n### {who}\n")[1].split("\n##")[0]
    rows = [*tables(section, "can learn")]
    assert len(rows) >= 3
    known = functions("tests")
    for can, cannot, why, tested in rows:
        assert can or cannot
        assert why
        named = re.findall(r"`(\w+)`", tested)
        assert named, f"{who}: {can or cannot} is tested by nothing"
        assert not set(named) - known


def test_each_attack_that_once_worked_has_a_test_of_an_adversary() -> None:
    rows = [*tables(THREATS, "attack")]
    assert [int(cells[0].split(".")[0]) for cells in rows] == [*range(1, len(rows) + 1)]
    known = functions("tests/adversary")
    for cells in rows:
        named = re.findall(r"`(\w+)`", cells[-1])
        assert named, cells[0]
        assert not set(named) - known, cells[0]


def test_every_rule_says_what_it_stops() -> None:
    for rule, _, stops in tables((ROOT / "docs/trust.md").read_text(), "rule"):
        assert stops, f"{rule} stops nothing"


def test_the_ledgers_page_names_every_field_of_a_line() -> None:
    text = (ROOT / "docs/file-formats.md").read_text().partition("## Ledger")[2]
    assert {field for field in get_type_hints(Entry) if f"`{field}`" not in text} == set()


def jobs() -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for block in blocks(path.read_text(), "toml"):
            if "strategy =" in block:
                yield path.name, block


def test_every_job_file_of_the_pages_is_one() -> None:
    names = []
    for name, block in jobs():
        values = tomllib.loads(block)
        if job_file.SEARCH in values:
            candidates.read(values.pop(job_file.SEARCH))
        job = job_wire.decode(job_file.of_table(values))
        job.parameters.validate(job)
        names.append((name, job.strategy.name))
    assert {strategy for _, strategy in names} >= set(NAMES)


def test_every_policy_of_the_pages_is_one() -> None:
    found = [
        Policy(**tomllib.loads(block)["policy"])
        for path in PAGES
        for block in blocks(path.read_text(), "toml")
        if "[policy]" in block and "strategy =" not in block and "stale_psi" not in block
    ]
    assert found


def commands() -> Iterator[tuple[str, str]]:
    """Command lines in the pages' blocks, continuation lines joined, comments cut off."""
    for path in PAGES:
        for block in blocks(path.read_text(), "", "console", "sh", "shell", "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                text = re.sub(r" [<>] \S+", "", line.strip().removeprefix("$ "))
                for start in ("hedgerow ", "make ", "python -m "):
                    if text.startswith(start) and "…" not in text.split("  #")[0]:
                        yield path.name, text


def parsed(words: list[str]) -> None:
    """Parse a command line as click does, without opening what it names."""
    command: click.Command = main
    context = click.Context(main, **main.context_settings)
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"hedgerow has no command {name}"
        command, context = found, click.Context(found, parent=context, info_name=name)
    given, rest, _ = command.make_parser(context).parse_args(words)
    assert not rest
    for parameter in command.params:
        if parameter.required and isinstance(parameter, click.Option) and not parameter.envvar:
            assert given.get(parameter.name or "") is not None, f"{parameter.opts} is missing"


def test_every_command_line_of_the_pages_is_one() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    n_commands = 0
    for name, text in commands():
        words = shlex.split(text, comments=True)
        try:
            if words[0] == "hedgerow":
                parsed([word for word in words[1:] if word != "&"])
            elif words[0] == "make":
                assert words[1] in targets, f"no target {words[1]}"
            else:
                assert (ROOT / (words[2].replace(".", "/") + ".py")).is_file() or (
                    ROOT / words[2].replace(".", "/") / "__main__.py"
                ).is_file(), f"no module {words[2]}"
        except (AssertionError, click.ClickException) as error:
            pytest.fail(f"{name}: {text}: {error}")
        n_commands += 1
    assert n_commands > 40


def test_every_file_that_the_pages_name_in_code_is_there() -> None:
    found = {
        (path.name, name)
        for path in PAGES
        for name in re.findall(
            r"`((?:tests|docs|deploy|benchmarks|examples|boosting|services|coordinator|crypto"
            r"|client_agent)/[\w./-]+)`",
            path.read_text(),
        )
    }
    assert len(found) > 20
    keys = (".csr", ".crt", ".key")  # of the reader's, in folders of their own
    missing = sorted(
        (page, name)
        for page, name in found
        if not name.endswith(keys) and not (ROOT / name).exists()
    )
    assert missing == []


def test_every_page_that_the_code_names_is_there() -> None:
    folders = "benchmarks boosting client_agent coordinator crypto hedgerow proto services tests"
    found = {
        (path, name)
        for folder in folders.split()
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".c", ".h", ".proto")
        for name in re.findall(r"\bdocs/[\w./-]+\.md\b", path.read_text())
    }
    assert len(found) > 10
    assert sorted((path, name) for path, name in found if not (ROOT / name).is_file()) == []


def test_the_page_of_tests_counts_them() -> None:
    page = (ROOT / "docs/how-it-is-tested.md").read_text()
    rows = re.findall(r"^\| (`tests/\w+`(?:, `tests/\w+`)*) \| (\d+) \|", page, re.MULTILINE)
    counted = {name for names, _ in rows for name in re.findall(r"tests/\w+", names)}
    folders = {f"tests/{path.parent.name}" for path in ROOT.glob("tests/*/*.py")}
    assert counted == folders, "a folder of tests without a row, or a row without tests"
    for names, said in rows:
        texts = [
            path.read_text()
            for name in re.findall(r"tests/\w+", names)
            for path in (ROOT / name).rglob("*.py")
        ]
        n = sum(len(re.findall(r"^ *(?:async )?def test_", text, re.MULTILINE)) for text in texts)
        assert int(said) <= n < 1.25 * int(said) + 10, (names, said, n)
