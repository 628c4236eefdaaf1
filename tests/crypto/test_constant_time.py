"""Kernels whose secrets choose no branch and no address, by valgrind over the compiled library.

Memcheck holds the secrets to be undefined and reports each conditional jump and each address that
depends on an undefined value. So the compiler's own branches count, too, and nothing is timed.
Every path but IFMA, which valgrind does not know.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

import hatch_build
from hedgerow.crypto.arithmetic.engine import available_kernels

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "crypto/native"
REFUSALS = {
    "x25519": ("zero[lane]) bad = at;",),
    "map_to_curve": (),
    "encode": (),
    "decode": ("!valid[k][lane]) bad = i;", "[31] & 0x80) valid[k][lane] = 0;"),
}
"""By kernel, the lines that say which element is refused, which all parties learn."""
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        shutil.which("valgrind") is None or hatch_build.compiler() is None,
        reason="needs valgrind and a compiler",
    ),
]


def built(folder: Path, sources: Path, *own: str) -> tuple[Path, Path]:
    """Return the program, and the curve's library as it is shipped, with line numbers."""
    compiler = hatch_build.compiler()
    assert compiler is not None
    program, library = folder / "constant_time", folder / "curve.so"
    subprocess.run(
        [*compiler, "-O1", "-g", HERE / "constant_time.c", "-o", program, "-ldl"], check=True
    )
    flags = [*hatch_build.CFLAGS, "-g", "-shared", *own]
    subprocess.run([*compiler, *flags, sources / "curve.c", "-o", library], check=True)
    return program, library


def found(program: Path, library: Path, kernel: str, path: str, sources: Path) -> list[str]:
    """Return the lines of the kernel's source where a secret chooses a branch or an address."""
    report = program.with_name("report.xml")
    done = subprocess.run(
        ["valgrind", "--xml=yes", f"--xml-file={report}", program, library, kernel, path],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
    lines = []
    for error in ElementTree.parse(report).iter("error"):
        kind = error.findtext("kind")
        if kind in ("UninitCondition", "UninitValue"):
            frame = error.find("stack/frame")
            assert frame is not None
            file, line = frame.findtext("file"), frame.findtext("line")
            assert file, frame.findtext("fn")
            assert line, frame.findtext("fn")
            lines.append((sources / file).read_text().splitlines()[int(line) - 1].strip())
    return sorted(set(lines))


PATHS = [path for path in ("portable", "avx2") if path in available_kernels()]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return built(tmp_path_factory.mktemp("shipped"), NATIVE)


def beyond_refusals(kernel: str, reported: list[str]) -> list[str]:
    return [x for x in reported if not any(known in x for known in REFUSALS[kernel])]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kernel", REFUSALS)
def test_secrets_choose_no_branch_and_no_address(
    shipped: tuple[Path, Path], kernel: str, path: str
) -> None:
    reported = found(*shipped, kernel, path, NATIVE)
    assert beyond_refusals(kernel, reported) == []
    assert len(reported) == len(REFUSALS[kernel]), "a refusal that is not seen hides others"


LEAKS = {
    "x25519": ("splat)(0 - (bit ^ swapped))", "splat)(TABLE[bit ^ swapped])"),
    "map_to_curve": ("FN(carry)(&r, &wide);", "FN(carry)(&r, &wide); if (*in & 1) r = wide;"),
}
"""By kernel, a place of the source, and what looks up a secret there, or branches by it."""


def test_a_branch_or_an_address_by_a_secret_is_found(tmp_path: Path) -> None:
    sources = tmp_path / "native"
    shutil.copytree(NATIVE, sources)
    file = sources / "curve_intersection.h"
    text = "#define TABLE ((const volatile uint64_t[2]){0, ~(uint64_t)0})\n" + file.read_text()
    for own, other in LEAKS.values():
        assert text.count(own) == 1
        text = text.replace(own, other)
    file.write_text(text)
    changed = built(tmp_path, sources, "-O1")
    for kernel in LEAKS:
        assert beyond_refusals(kernel, found(*changed, kernel, "portable", sources))
