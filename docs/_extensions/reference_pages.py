"""Makes pages before Sphinx reads its sources: docs/api/{commands,jobs,...}.md and notebooks."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import xgboost

import hedgerow
from hedgerow.boosting.metrics.names import described as metrics
from hedgerow.boosting.strategies import NAMES
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.processes import SETTINGS, settings_of
from hedgerow.services.process.settings import described
from hedgerow.services.wire.job_reference import JobKey, keys_of

_JOBS = """# Every key of a job file

Made from the code: types are the message's, defaults and meanings the parameters' own, and limits
what a job answers to a value that cannot be. `hedgerow help job.toml STRATEGY` prints the same. A
key that a strategy would ignore is an error."""
_SETTINGS = """# Every setting of every process

Made from the code. A process reads `--config FILE.toml`, and the environment overrides the file:
the variable is the prefix and the key in capitals, of a table's key with two underscores between.
`hedgerow help agent.toml` prints the same."""
_METRICS = """# Metrics

`metrics = ["auc", "logloss"]` in a job file names the scores of each round; the first one chooses
the best round and stops a job early. `hedgerow evaluate --metrics` and `hedgerow search` take the
same names. The names of scikit-learn and XGBoost that stand behind *also called* are taken too,
and results show ours. `hedgerow help metrics TASK` prints the same.

Scores of rows that are in one place are exact, and those of scikit-learn to rounding (`aucpr` is
XGBoost's). Where silos add scores up, the total is that of all rows together; of `auc`, `aucpr`,
`average_precision` and `ks` it is read from 1,024 counts of rows by score, so the last digits
differ. A metric for which both classes are needed is not defined on rows of one."""
_COMMANDS = """# Every command

Made from the code: what `--help` prints of each. The [quickstart](../quickstart.md) has those to
begin with, and `hedgerow help` lists what it explains beside them: job files, settings, metrics."""
_LIBRARY = """# Every name of the Python library

Made from the code: signatures and docstrings. [In Python](../python.md) shows how they are used
together."""
_MODULES = ("hedgerow", "hedgerow.sklearn", "hedgerow.xgboost", "hedgerow.mlflow")
_COLUMNS = 96
"""Characters of a line of help."""
_PREFIXES = {"coordinator": "HEDGEROW_COORDINATOR_", "agent": "HEDGEROW_AGENT_",
             "crypto": "HEDGEROW_CRYPTO_", "serve": "HEDGEROW_SERVE_"}  # fmt: skip


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|").replace("<", "&lt;").replace("{", "&#123;")


def _code(text: str) -> str:
    return f"`{text}`" if text and text != "required" else text


def _table(headings: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _job_rows(keys: list[JobKey], *, strategies: bool) -> Iterator[tuple[str, ...]]:
    for key in keys:
        followers = "all" if key.strategies == NAMES else ", ".join(key.strategies)
        yield (
            f"`{key.key}`", key.kind, _code(key.default), _cell(key.limits),
            *([followers] if strategies else []), _cell(key.about),
        )  # fmt: skip


def jobs_page() -> str:
    """Return the page of job keys."""
    lines = [_JOBS]
    for table in dict.fromkeys(key.table for key in keys_of()):
        keys = [key for key in keys_of() if key.table == table]
        shared = table not in NAMES
        headings = ["key", "type", "default", "limits", *(["strategies"] if shared else []), ""]
        heading = f"## `[{table}]`" if table else "## Above all tables"
        lines += ["", heading, "", *_table(tuple(headings), _job_rows(keys, strategies=shared))]
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """Return the page of settings."""
    lines = [_SETTINGS]
    for process in SETTINGS:
        keys = [*described(settings_of(process))]
        lines += ["", f"## {process.capitalize()}", "", f"Environment: `{_PREFIXES[process]}…`."]
        for table in dict.fromkeys(key.table for key in keys):
            of = (key for key in keys if key.table == table)
            rows = ((f"`{k.key}`", k.kind, _code(k.default), _cell(k.about)) for k in of)
            lines += ["", f"### `[{table}]` of the {process}", ""] if table else [""]
            lines += _table(("key", "type", "default", ""), rows)
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """Return the page of metrics."""
    rows = (
        (
            f"`{m.metric}`", m.tasks, m.better,
            _cell(m.meaning) + (f"; also called {m.also_called}" if m.also_called else ""),
        )
        for m in metrics()
    )  # fmt: skip
    headings = ("metric", "tasks", "better", "")
    return "\n".join([_METRICS, "", *_table(headings, rows)]) + "\n"


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Yield the words of each command and its help."""
    context = click.Context(command, info_name=path, terminal_width=_COLUMNS)
    yield path, command.get_help(context)
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        found = command.get_command(context, name)
        if found is not None and not found.hidden:
            yield from _commands(found, f"{path} {name}")


def commands_page() -> str:
    """Return the page of commands."""
    pages = (
        f"{'#' * min(path.count(' ') + 1, 3)} `{path}`\n\n```text\n{text}\n```"
        for path, text in _commands(main, "hedgerow")
        if " " in path
    )
    return "\n\n".join([_COMMANDS, *pages]) + "\n"


def _members(place: str, found: Any) -> Iterator[str]:
    """Yield the signature and docstring of a name, and those of what a class has of its own."""
    own = [found] if not inspect.isclass(found) else [found, *map(vars(found).get, _public(found))]
    for k, one in enumerate(own):
        one = getattr(one, "__func__", one)
        said = inspect.getdoc(one)
        if not said or not (callable(one) or isinstance(one, property)):
            continue
        name = place if not k else f"{place}.{getattr(one, '__name__', '')}"
        told = ""
        if callable(one):
            told = _signature(one)
        if isinstance(one, property):
            name = f"{place}.{one.fget.__name__}"
        yield f"{name}{told}\n" + "".join(
            f"    {line}".rstrip() + "\n" for line in said.splitlines()
        )


class _Said:
    """What a signature shows as it is, without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _signature(of: Any) -> str:
    """Return a signature: types without quotes, and ``...`` for a function's address."""
    found = inspect.signature(of)

    def plain(kind: Any) -> Any:
        return _Said(kind) if isinstance(kind, str) else kind

    parameters = [
        one.replace(
            annotation=plain(one.annotation),
            default=_Said("...") if inspect.isfunction(one.default) else one.default,
        )
        for one in found.parameters.values()
    ]
    returned = plain(found.return_annotation)
    return str(found.replace(parameters=parameters, return_annotation=returned))


def _public(found: type) -> list[str]:
    return [name for name in vars(found) if not name.startswith("_")]


def library_page() -> str:
    """Return the page of the library's names."""
    parts = [_LIBRARY]
    for module in _MODULES:
        of = importlib.import_module(module)
        parts.append(f"## {module}")
        for name in sorted(getattr(of, "__all__", None) or hedgerow._PLACES):
            found = getattr(of, name)
            own = inspect.isclass(found) or inspect.isfunction(found)
            if own and getattr(xgboost, name, None) is not found:
                text = "\n".join(_members(name, found))
                parts.append(f"### `{module}.{name}`\n\n```text\n{text}```")
    return "\n\n".join(parts) + "\n"


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown: its texts, and its code without what it prints."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        if len(parts) == 1:
            parts.append(
                f"*To run it, open `examples/notebooks/{path.name}` of a clone, or the same below "
                "the folder of the installed package (`python -c 'import hedgerow; "
                "print(hedgerow.__path__[0])'`).*"
            )
    return "\n\n".join(parts) + "\n"


def generate(docs: Path) -> None:
    """Write the pages that have changed."""
    reference = {
        "commands": commands_page(), "jobs": jobs_page(), "library": library_page(),
        "metrics": metrics_page(), "settings": settings_page(),
    }  # fmt: skip
    notebooks = sorted((docs.parent / "examples/notebooks").glob("*.ipynb"))
    pages = {f"api/{name}": text for name, text in reference.items()}
    pages |= {f"notebooks/{path.stem}": notebook_page(path) for path in notebooks}
    for name, text in pages.items():
        path = docs / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("builder-inited", lambda app: generate(Path(app.srcdir)))
    return {"parallel_read_safe": True}
