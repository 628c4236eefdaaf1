"""Run the tables of the papers, keep each as JSON, and write the pages' tables from it.

``python -m benchmarks.results --data DIR [--tables NAME ...] [--again] [--render]``, or ``make
results DATA=DIR``. Each table is the output of another benchmark, run part by part (one part is one
set) with the seeds below; ``docs/results/NAME.json`` has, by part, the rows, the command, the date,
the commit, the machine and the CPU seconds. A part that the file has is not run again (``--again``
does), so a run that is stopped goes on. Small parts come first. Then every page's text between
``<!-- results NAME -->`` and ``<!-- end -->`` is written from the file; ``--render`` does only
that. ``tests/docs/test_results.py`` holds the pages to the files.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xgboost

from benchmarks._result_tables import DATA, TABLES

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/results"
_MARKED = re.compile(r"(<!-- results ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PARTS = re.compile(r"(<!-- parts ([\w-]+) -->).*?(<!-- end -->)")

# --- running and keeping ---


def kept(name: str) -> dict[str, Any]:
    """Return what has been run of a table, by part."""
    path = FOLDER / f"{TABLES[name].rows_of or name}.json"
    return json.loads(path.read_text())["parts"] if path.is_file() else {}


def machine() -> str:
    """Say in a line what ran it."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return (
        f"{os.cpu_count()} cores of {cpu[1] if cpu else platform.machine()}, Python "
        f"{platform.python_version()}, XGBoost {xgboost.__version__}"
    )


def commit() -> str:
    """Return the newest commit of main in what ran, with a ``+`` where code differs from it.

    Commits of other branches may be rebased, and are then nowhere. HEAD where there is no main.
    """
    git = ["git", "-C", str(ROOT)]
    base = subprocess.run([*git, "merge-base", "HEAD", "main"], capture_output=True, text=True)
    of = base.stdout.strip() or "HEAD"
    found = subprocess.run([*git, "rev-parse", "--short", of], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", of, "--", "*.py", "*.c", "*.proto"])
    return found.stdout.strip() + ("+" if changed.returncode else "")


def run(name: str, part: str, data: Path) -> None:
    """Run a part of a table and keep its rows."""
    table = TABLES[name]
    facts = {"date": f"{datetime.date.today()}", "commit": commit(), "machine": machine()}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        words = table.command(part, str(data))
        subprocess.run(
            [sys.executable, *words, "--json", str(out)],
            cwd=ROOT, check=True, env={**os.environ, "HEDGEROW_DATA": str(data)},
        )  # fmt: skip
        rows = json.loads(out.read_text())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if not rows:
        print(f"{name} {part}: nothing was measured, is its file in --data?")
        return
    found = kept(name) | {
        part: {
            **facts, "command": "python " + shlex.join(table.command(part, DATA)),
            "cpu_seconds": round(spent), "rows": rows,
        }
    }  # fmt: skip
    ordered = {each: found[each] for each in table.parts if each in found}
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps({"table": name, "parts": ordered}, indent=1) + "\n")


# --- the pages ---


def shown(name: str) -> str:
    """Return a table's Markdown, with what ran it and what did not run."""
    table, parts = TABLES[name], kept(name)
    missing = ", ".join(part for part in table.parts if part not in parts)
    said = f"Not run: {missing}." if missing else ""
    if not parts:
        return f"{said}\n"
    others = [kept(other) for other in table.beside]
    headings, *lines = table.shown(
        {
            part: found["rows"] + [row for other in others for row in other[part]["rows"]]
            for part, found in parts.items()
        }
    )
    cells = [headings, ["---"] * len(headings), *lines]
    text = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    dates = sorted({found["date"] for found in parts.values()})
    commits = sorted({found["commit"] for found in parts.values()})
    machines = sorted({found["machine"] for found in parts.values()})
    spent = sum(found["cpu_seconds"] for found in parts.values())
    return (
        f"{text}\n\n{' and '.join(dict.fromkeys((dates[0], dates[-1])))}, commit "
        f"{', '.join(commits)}, {'; '.join(machines)}, {spent:,} CPU seconds. {said}".rstrip()
        + "\n"
    )


def ran(name: str) -> str:
    """Say in words for a cell which parts of a table ran and which did not."""
    found = kept(name)
    missing = ", ".join(part for part in TABLES[name].parts if part not in found)
    return (
        f"{len(found)} of {len(TABLES[name].parts)} parts ran; **not run**: {missing}"
        if missing
        else (f"all {len(found)} parts ran")
    )


def rendered(page: str) -> str:
    """Return a page with its marked tables, and what ran of others, as the files have them.

    Raises
    ------
    KeyError
        The page names a table that does not exist.
    """
    page = _MARKED.sub(lambda found: found[1] + shown(found[2]) + found[3], page)
    return _PARTS.sub(lambda found: found[1] + ran(found[2]) + found[3], page)


def pages() -> Iterator[Path]:
    """Yield the pages that have marked tables."""
    for path in sorted((ROOT / "docs").glob("*.md")):
        if _MARKED.search(text := path.read_text()) or _PARTS.search(text):
            yield path


def main() -> None:
    """Run what is missing, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, help="folder of Parquet files")
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--again", action="store_true", help="run what is there, too")
    parser.add_argument("--render", action="store_true", help="only write the pages")
    parser.add_argument("--quick", action="store_true", help="list what is missing")
    arguments = parser.parse_args()
    wanted = [
        (name, part)
        for name in arguments.tables
        if not TABLES[name].rows_of
        for part in TABLES[name].parts
        if arguments.again or part not in kept(name)
    ]
    if arguments.quick or (arguments.data is None and not arguments.render):
        print("\n".join(f"{name} {part}: not run" for name, part in wanted))
        return
    for name, part in () if arguments.render else wanted:
        if not arguments.again and part in kept(name):
            continue  # another run beside this one has it by now
        print(f"== {name} {part}", flush=True)
        run(name, part, arguments.data)
    for path in pages():
        path.write_text(rendered(path.read_text()))


if __name__ == "__main__":
    main()
