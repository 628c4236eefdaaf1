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
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xgboost

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/results"
_MARKED = re.compile(r"(<!-- results ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

DATA = "DIR"
"""Stands for the folder of the data sets."""

Row = dict[str, Any]
Lines = list[list[str]]


@dataclass(frozen=True)
class Table:
    """A table of results.

    Parameters
    ----------
    module : str
        The benchmark.
    parts : dict of str to tuple of str
        Arguments by part, small ones first.
    shown : callable
        All rows by part to the lines of the page's table, headings first.
    """

    module: str
    parts: dict[str, tuple[str, ...]]
    shown: Callable[[dict[str, list[Row]]], Lines]

    def command(self, part: str, data: str) -> list[str]:
        """Return the words after ``python`` that run a part."""
        where = [data if word == DATA else word for word in self.parts[part]]
        return ["-m", f"benchmarks.{self.module}", *where]


# --- how each table is shown ---


def _one(rows: Iterable[Row], **facts: Any) -> Row:
    [found] = [row for row in rows if all(row.get(key) == value for key, value in facts.items())]
    return found


def _spread(row: Row, digits: int) -> str:
    return f"{row['value']:.{digits}f} ± {row['sd']:.{digits}f}"


def _samplers(parts: dict[str, list[Row]]) -> Lines:
    """Lay out Table V of the MVS paper: by set and sampler, two scores and three readings."""
    lines = [["set", "sampler", "metric", "last", "selected", "top 1 %", "paper, top 1 %"]]
    for part, rows in parts.items():
        names = dict.fromkeys((row["sampler"], row["unit"]) for row in rows)
        for sampler, metric in names:
            digits = 0 if metric == "rmse" else 3
            own = [row for row in rows if (row["sampler"], row["unit"]) == (sampler, metric)]
            readings = {row["metric"].rpartition(", ")[2]: row for row in own}
            lines.append([
                part, "pooled XGBoost" if sampler == "central" else sampler, metric,
                *(_spread(readings[each], digits) for each in ("last", "selected", "top 1 %")),
                f"{own[0]['published']:g}",
            ])  # fmt: skip
    return lines


def _fedga(parts: dict[str, list[Row]]) -> Lines:
    """Lay out FedGA's trees: by set, scores of all kinds of trees, change and nodes."""
    kinds = {
        "own": "own", "fedga": "**FedGA**", "own-at-depth": "own at FedGA's depth",
        "forest": "forest of own", "central": "central CART", "dp-tree": "DP, every cut",
        "dp-tree-histogram": "DP, histograms", "dp-tree-private": "DP, private edges",
        "dp-tree-no-noise": "DP, no noise",
    }  # fmt: skip
    others = ("change, %", "silos gaining, %", "nodes own, FedGA", "edit distance")
    lines = [["set", "metric", *kinds.values(), *others]]
    for part, rows in parts.items():
        metric = "mse" if any(row["metric"] == "mse" for row in rows) else "f1"
        scores = [[r for r in rows if (r["metric"], r["who"]) == (metric, kind)] for kind in kinds]
        nodes = [_one(rows, metric="decision_nodes", who=who)["value"] for who in ("own", "fedga")]
        change = _one(rows, metric="delta", who="fedga")
        gaining = _one(rows, metric="share_gaining", who="fedga")["value"]
        lines.append([
            part, metric, *(f"{own[0]['value']:.4g}" if own else "–" for own in scores),
            f"{change['value']:+.1f} ± {change['sd']:.1f}", f"{100 * gaining:.0f}",
            f"{nodes[0]:.1f}, {nodes[1]:.1f}",
            f"{_one(rows, metric='edit_distance', who='fedga')['value']:.2f}",
        ])  # fmt: skip
    return lines


def _federations(parts: dict[str, list[Row]]) -> Lines:
    """Lay out FedGA's change against own trees by number of silos, and by the share drawn."""
    names = dict.fromkeys(row["who"] for rows in parts.values() for row in rows)
    lines = [["set", *(f"{name} silos" for name in names)]]
    for part, rows in parts.items():
        changes = [_one(rows, metric="delta", who=name) for name in names]
        lines.append([part, *(f"{row['value']:+.1f} ± {row['sd']:.1f}" for row in changes)])
    return lines


def _gates(parts: dict[str, list[Row]]) -> Lines:
    """Lay out FATE's gates: one split, and the mean difference of all splits."""
    lines = [["set", "metric", "ours, one split", "XGBoost", "mean difference, %"]]
    for part, rows in parts.items():
        [name] = {row["metric"] for row in rows if row["who"] == "xgboost-pooled"}
        mean, error = (
            _one(rows, metric=f"{name}_to_xgboost_{kind}")["value"]
            for kind in ("mean", "standard_error")
        )
        lines.append([
            part, name.rpartition("_")[2],
            *(f"{_one(rows, metric=name, who=who)['value']:.4f}"
              for who in ("native", "xgboost-pooled")),
            f"{mean:+.2f} ± {error:.2f}",
        ])  # fmt: skip
    return lines


def _heads(parts: dict[str, list[Row]]) -> Lines:
    """Lay out Table 4 of the FedXGBllr paper: by set, the score of each network."""
    kinds = ("cnn", "conv3", "dense")
    lines = [["set", "silos", "seeds", *(f"`{kind}`" for kind in kinds)]]
    seeds = [row for rows in parts.values() for row in rows if "_seed_" in row["metric"]]
    for name in dict.fromkeys(row["metric"].rpartition("_silos_seed_")[0] for row in seeds):
        own = [row for row in seeds if row["metric"].rpartition("_silos_seed_")[0] == name]
        by = {kind: [row["value"] for row in own if row["who"] == kind] for kind in kinds}
        short, _, silos = name.rpartition("_")
        lines.append([short, silos, f"{len(by['cnn'])}", *map(_mean_and_spread, by.values())])
    return lines


def _mean_and_spread(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def _modes(parts: dict[str, list[Row]]) -> Lines:
    """Lay out SecureBoost's modes: by set, score, paired difference from standard, and CPU."""
    lines = [
        ["set", "mode", "metric", "splits", "mean", "less standard", "CPU s", "less standard, %"]
    ]
    for part, rows in parts.items():
        scored = [row for row in rows if "_seed_" in row["metric"]]
        metric = scored[0]["metric"].rpartition("_seed_")[0].rpartition("_")[2]
        modes = dict.fromkeys(row["who"] for row in scored)
        by = {who: [row["value"] for row in scored if row["who"] == who] for who in modes}
        cpu = {who: _one(rows, who=who, unit="s")["value"] for who in modes}
        for who, values in by.items():
            gaps = [a - b for a, b in zip(values, by["standard"], strict=True)]
            error = statistics.stdev(gaps) / len(gaps) ** 0.5
            own = who == "standard"
            lines.append([
                part, who, metric, f"{len(values)}", f"{statistics.fmean(values):.4f}",
                "–" if own else f"{statistics.fmean(gaps):+.4f} ± {error:.4f}", f"{cpu[who]:.1f}",
                "–" if own else f"{100 * (cpu[who] / cpu['standard'] - 1):+.0f}",
            ])  # fmt: skip
    return lines


def _simfl(parts: dict[str, list[Row]]) -> Lines:
    """Lay out Tables 2 and 3 of the FedXGBllr paper: by set and silos, scores and SimFL's bytes."""
    kinds = ("xgboost-pooled", "mean", "cnn", "simfl")
    lines = [
        ["set", "silos", "seeds", "pooled", "mean", "`cnn`", "SimFL", "SimFL, MB", "formula, MB"]
    ]
    seeds = [row for rows in parts.values() for row in rows if "_seed_" in row["metric"]]
    for name in dict.fromkeys(row["metric"].rpartition("_seed_")[0] for row in seeds):
        own = [row for row in seeds if row["metric"].rpartition("_seed_")[0] == name]
        by = {kind: [row["value"] for row in own if row["who"] == kind] for kind in kinds}
        scores = [_mean_and_spread(values) for values in by.values()]
        mb = [
            statistics.mean(row["value"] for row in own if row["who"] == who) / 1e6
            for who in ("simfl-bytes", "simfl-formula-bytes")
        ]
        short, silos, _ = name.rsplit("_", 2)
        lines.append([
            short, silos, f"{len(by['simfl'])}", *scores, *(f"{each:.1f}" for each in mb),
        ])  # fmt: skip
    return lines


FEDGA_SETS = (
    "abalone", "nursery", "adult", "tb_analcatdata_supreme", "tb_wine_quality",
    "tb_california", "tb_default_credit", "tb_electricity", "tb_house_16h_clf",
    "tb_bank_marketing", "tb_magic_telescope", "tb_bike_sharing",
    "tb_brazilian_houses", "tb_visualizing_soil", "tb_cpu_act", "tb_houses",
    "tb_house_16h_reg", "tb_house_sales",
)  # fmt: skip

TABLES = {
    "simfl": Table(
        "fedxgbllr",
        {
            f"{name}-{silos}-seed-{seed}": (
                "--what", "simfl", "--data", DATA, "--sets", name, "--silos", silos,
                "--first-seed", seed, "--seeds", "1",
            )
            for silos, seeds in (("2", "0"), ("10", "0"), ("2", "1234"))
            for seed in seeds
            for name in ("abalone", "cpusmall", "cod_rna", "higgs_26k", "a9a")
        },
        _simfl,
    ),
    "heads": Table(
        "fedxgbllr",
        {
            f"{name}-seed-{seed}": (
                "--what", "ablations", "--data", DATA, "--sets", name, "--silos", "5",
                "--first-seed", seed, "--seeds", "1",
            )
            for seed in "01234"
            for name in ("abalone", "cpusmall", "higgs_26k", "a9a", "cod_rna")
        },
        _heads,
    ),
    "samplers": Table(
        "histogram_samplers",
        {name: ("--data", DATA, "--sets", name) for name in ("insurance", "machine", "skin")},
        _samplers,
    ),
    "vertical-gates": Table(
        "vertical",
        {
            short: ("--data", DATA, "--only", "gates", "--sets", name)
            for short, name in (
                ("student", "fate_student_hetero"),
                ("breast", "fate_breast_hetero"),
                ("ionosphere", "fate_ionosphere_scale_hetero"),
                ("motor", "fate_motor_hetero"),
                ("epsilon", "fate_epsilon_5k"),
                ("default-credit", "fate_default_credit_hetero"),
            )
        },
        _gates,
    ),
    "vertical-modes": Table(
        "vertical_modes",
        {
            short: ("--data", DATA, "--sets", name, "--splits", splits)
            for short, name, splits in (
                ("breast", "fate_breast_hetero", "20"),
                ("student", "fate_student_hetero", "20"),
                ("ionosphere", "fate_ionosphere_scale_hetero", "20"),
                ("wine", "tb_wine_quality", "5"),
                ("motor", "fate_motor_hetero", "20"),
                ("nursery", "nursery", "5"),
                ("epsilon", "fate_epsilon_5k", "5"),
                ("default-credit", "fate_default_credit_hetero", "5"),
            )
        },
        _modes,
    ),
    "fedga": Table(
        "fedga",
        {
            name: ("--data", DATA, "--sets", name, "--splits", "5", "--runs", "3")
            for name in FEDGA_SETS
        },
        _fedga,
    ),
    "fedga-federations": Table(
        "fedga",
        {
            name: (
                "--data", DATA, "--part", "federations", "--sets", name, "--splits", "3",
                "--runs", "1",
            )
            for name in FEDGA_SETS
        },
        _federations,
    ),
}  # fmt: skip


# --- running and keeping ---


def kept(name: str) -> dict[str, Any]:
    """Return what has been run of a table, by part."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text())["parts"] if path.is_file() else {}


def machine() -> str:
    """Say in a line what ran it."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return (
        f"{os.cpu_count()} cores of {cpu[1] if cpu else platform.machine()}, Python "
        f"{platform.python_version()}, XGBoost {xgboost.__version__}"
    )


def commit() -> str:
    """Return the commit that ran, with a ``+`` where files differ from it."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "*.py", "*.c", "*.proto"])
    return found.stdout.strip() + ("+" if changed.returncode else "")


def run(name: str, part: str, data: Path) -> None:
    """Run a part of a table and keep its rows."""
    table = TABLES[name]
    facts = {"date": f"{datetime.date.today()}", "commit": commit(), "machine": machine()}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        words = table.command(part, str(data))
        subprocess.run([sys.executable, *words, "--json", str(out)], cwd=ROOT, check=True)
        rows = json.loads(out.read_text())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if not rows:
        print(f"{name} {part}: nothing was measured, is its file in --data?")
        return
    found = kept(name) | {
        part: {
            **facts, "command": "python " + " ".join(table.command(part, DATA)),
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
    headings, *lines = table.shown({part: found["rows"] for part, found in parts.items()})
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


def rendered(page: str) -> str:
    """Return a page with its marked tables as the files have them.

    Raises
    ------
    KeyError
        The page names a table that does not exist.
    """
    return _MARKED.sub(lambda found: found[1] + shown(found[2]) + found[3], page)


def pages() -> Iterator[Path]:
    """Yield the pages that have marked tables."""
    for path in sorted((ROOT / "docs").glob("results*.md")):
        if _MARKED.search(path.read_text()):
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
        for part in TABLES[name].parts
        if arguments.again or part not in kept(name)
    ]
    if arguments.quick or (arguments.data is None and not arguments.render):
        print("\n".join(f"{name} {part}: not run" for name, part in wanted))
        return
    for name, part in () if arguments.render else wanted:
        print(f"== {name} {part}", flush=True)
        run(name, part, arguments.data)
    for path in pages():
        path.write_text(rendered(path.read_text()))


if __name__ == "__main__":
    main()
