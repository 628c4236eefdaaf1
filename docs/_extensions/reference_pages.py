"""Makes pages before Sphinx reads its sources: docs/api/{jobs,metrics,settings}.md, notebooks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hedgerow.boosting.metrics.names import described as metrics
from hedgerow.boosting.strategies import NAMES
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
    reference = {"jobs": jobs_page(), "settings": settings_page(), "metrics": metrics_page()}
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
