"""Mutation testing by mutmut: ``python -m tests.mutants crypto --number 100 --seed 0``.

Mutmut changes the code in one place at a time and runs the tests that call the function: a mutant
that they pass shows what they do not hold. The scopes have some 12,000 mutants, which take days, so
a sample is drawn, each mutant of a scope with the same chance. Verdicts are kept in
``build/mutants``: a run that was stopped goes on, a larger number adds to it, and ``--again`` runs
those that survived once more. What mutmut gives no verdict on is undecided, and not noticed.

Mutmut leaves decorated functions alone. Kernels are mutated all the same: in the copy they are
the Python functions. Properties, what runs when a module is
imported, the words of errors that are raised, and the C kernels are not.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/mutants"
SCOPES = {
    # What is built in other processes calls no mutant, and takes longest.
    "crypto": ("crypto", ["tests/crypto", "--ignore=tests/crypto/test_build.py"]),
    "sums": (
        "boosting/sums",
        ["tests/boosting/sums", "tests/adversary/test_shares.py", "tests/adversary/test_views.py"],
    ),
    "barrier": (
        "coordinator/server/barrier.py",
        [
            "tests/coordinator/server/test_barrier.py",
            "tests/coordinator/server/test_barrier_simulation.py",
        ],
    ),
}
"""What is mutated, and the tests that must notice."""
KERNEL = re.compile(rb"@kernel\([^\n]*\)\n")
UNDECIDED = "undecided"  # mutmut kept no verdict
COLUMNS = ("killed", "timeout", "survived", "no tests", UNDECIDED, "other")
Z = 1.96  # of a 95 % interval


@dataclass(frozen=True)
class Module:
    """One mutated file: its mutants, and mutmut's verdicts on those that have one."""

    name: str
    mutants: list[str]
    verdicts: dict[str, str]


def _copy(scope: str, folder: Path) -> None:
    """Bring the working tree's tracked files and compiled libraries to ``folder``."""
    source, tests = SCOPES[scope]
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    libraries = (str(path.relative_to(ROOT)) for path in ROOT.glob("crypto/native/*.so"))
    for name in (*filter(None, names.split("\0")), *libraries):
        path, target = ROOT / name, folder / name
        if path.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.is_symlink():
                target.symlink_to(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
            if name == source or name.startswith(f"{source}/"):
                content = KERNEL.sub(b"", content)
            if name == "pyproject.toml":
                content += _configuration(source, tests).encode()
            if not target.exists() or target.read_bytes() != content:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)


def _configuration(source: str, tests: list[str]) -> str:
    # All else of the package; mutmut would mutate anew what a second copy of it overwrites.
    path, beside = ROOT / "hedgerow" / source, list[Path]()
    while path != ROOT / "hedgerow":
        beside += [other for other in path.parent.iterdir() if other.name != "__pycache__"]
        beside.remove(path)
        path = path.parent
    copied = sorted(str(other.relative_to(ROOT)) for other in beside)
    return f"""
[tool.mutmut]
source_paths = ["hedgerow/{source}"]
also_copy = {json.dumps(copied)}
pytest_add_cli_args_test_selection = {json.dumps(tests)}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "tests.mutants"]
do_not_mutate_patterns = ["^ *raise "]
process_isolation = "forkserver"
use_git_change_detection = false
timeout_constant = 2.0
"""


def pytest_runtest_logstart() -> None:
    """Have no garbage collected inside a call, as a plugin of the tests that mutmut runs.

    Mutmut follows calls by a context variable. CPython 3.11 may collect garbage while it sets one,
    and reads freed memory where a finaliser calls a mutated function then (gh-148891).
    """
    gc.disable()


def pytest_runtest_logfinish() -> None:
    """Collect it between two tests."""
    gc.collect(0)


MUTMUT = str(Path(sys.executable).with_name("mutmut"))


def _mutmut(folder: Path, *words: str) -> None:
    """Run mutmut in the copy, out of which nothing of this tree is imported."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "mutants"), "PYTHONUNBUFFERED": "1"}
    with (folder / "mutmut.log").open("a") as log:
        done = subprocess.run(
            [MUTMUT, *words], cwd=folder, env=environment, stdout=log, stderr=log, check=False,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"mutmut ended with {done.returncode}; its words are in {log.name}")


def _within(folder: Path, function: str, *words: str) -> list[str]:
    """Call a function of this file in the copy, whose configuration mutmut reads."""
    called = f"import sys; from tests import mutants; mutants.{function}(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", called, *words], check=True, stdout=subprocess.PIPE, text=True,
        cwd=folder, env={**os.environ, "PYTHONPATH": "."},
    )  # fmt: skip
    return done.stdout.splitlines()


def _generate(jobs: str) -> None:
    """Write the mutants."""
    from mutmut import __main__ as mutmut

    mutmut.set_mutant_under_test("mutant_generation")
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.create_mutants(int(jobs))


def _show(*drawn: str) -> None:
    """Print those of the drawn mutants that nobody noticed."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    for module in modules(Path()):
        for name in module.mutants:
            said = module.verdicts.get(name, UNDECIDED)
            if name in drawn and said not in ("killed", "timeout"):
                path = f"hedgerow/{module.name}.py"
                print(f"\n{said}: {name}\n{get_diff_for_mutant(name, path=path)}")


def modules(folder: Path) -> list[Module]:
    """Return the mutated modules of a copy, and what is known of their mutants."""
    from mutmut.stats import status_by_exit_code

    found = []
    for path in sorted((folder / "mutants/hedgerow").rglob("*.py.meta")):
        codes = json.loads(path.read_text())["exit_code_by_key"]
        name = str(path.relative_to(folder / "mutants/hedgerow")).removesuffix(".py.meta")
        said = {key: status_by_exit_code[code] for key, code in codes.items() if code is not None}
        found.append(Module(name, list(codes), said))
    return found


def sample(found: Iterable[Module], number: int, seed: int) -> list[str]:
    """Return ``number`` mutants, each with the same chance; the first of a larger number."""
    names = sorted(name for module in found for name in module.mutants)
    return random.Random(seed).sample(names, len(names))[:number]


def interval(hits: int, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    middle, square = (hits + Z * Z / 2) / (n + Z * Z), hits * (n - hits) / n + Z * Z / 4
    half = Z * math.sqrt(square) / (n + Z * Z)
    return middle - half, middle + half


def _row(name: str, n_all: int, verdicts: Iterable[str]) -> str:
    counts = Counter(said if said in COLUMNS else "other" for said in verdicts)
    n, caught = counts.total(), counts["killed"] + counts["timeout"]
    if not n:
        return f"{name:32}{n_all:8}{0:7}"
    low, high = interval(caught, n)
    cells = "".join(f"{counts[column]:10}" for column in COLUMNS)
    return f"{name:32}{n_all:8}{n:7}{cells}{caught / n:8.0%}  {low:.0%} to {high:.0%}"


def table(found: list[Module], title: str) -> str:
    """Return a line for each module, and one for all."""
    head = f"{'module':32}{'mutants':>8}{'drawn':>7}"
    head += "".join(f"{column:>10}" for column in COLUMNS) + f"{'score':>8}  95 %"
    rows = [_row(module.name, len(module.mutants), module.verdicts.values()) for module in found]
    verdicts = [said for module in found for said in module.verdicts.values()]
    return "\n".join((head, *rows, _row(title, sum(len(m.mutants) for m in found), verdicts)))


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description="A sample of mutants, and who notices them.")
    parser.add_argument("scopes", nargs="*", metavar="SCOPE", help=", ".join(SCOPES))
    parser.add_argument("--number", type=int, default=100, help="mutants of each scope")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--again", action="store_true", help="run those that survived once more")
    given = parser.parse_args()
    if unknown := set(given.scopes) - set(SCOPES):
        parser.error(f"expected scopes of {', '.join(SCOPES)}, got {', '.join(sorted(unknown))}")
    for scope in given.scopes or SCOPES:
        folder = FOLDER / scope
        _copy(scope, folder)
        _within(folder, "_generate", str(given.jobs))
        drawn = sample(modules(folder), given.number, given.seed)
        known = {name: said for module in modules(folder) for name, said in module.verdicts.items()}
        alive = ("survived", "no tests") if given.again else ()
        wanted = [name for name in drawn if name not in known or known[name] in alive]
        if wanted:
            _mutmut(folder, "run", f"--max-children={given.jobs}", *wanted)
        chosen = set(drawn)
        found = [
            replace(m, verdicts={k: m.verdicts.get(k, UNDECIDED) for k in m.mutants if k in chosen})
            for m in modules(folder)
        ]
        print(*_within(folder, "_show", *drawn), sep="\n")
        print(f"\n{table(found, scope)}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
