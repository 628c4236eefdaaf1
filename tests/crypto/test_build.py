"""Installing without a compiler: everything is there, and computes the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers.paillier import KeyHolder
from hedgerow.crypto.ciphers.paillier_keys import generate_private_key
from hedgerow.crypto.native.sources import check, digest_of
from hedgerow.crypto.vault.blinding import LocalBlinder

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
NO_COMPILER = {**os.environ, "CC": "false"}

INSIDE = """
import json, sys
import hedgerow
from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
from hedgerow.crypto.ciphers.roles import ciphertext_rows
from hedgerow.crypto.ciphers.paillier import KeyHolder
from hedgerow.crypto.ciphers.paillier_keys import PrivateKey, PublicKey
from hedgerow.crypto.intersection.psi import LocalBlinder
given = json.load(sys.stdin)
assert hedgerow.__file__.startswith(given["folder"]), hedgerow.__file__
key = PrivateKey(PublicKey(given["p"] * given["q"], True), given["p"], given["q"])
holder = KeyHolder(key, Engine(workers=1))
vector = ciphertext_rows(bytes.fromhex(given["rows"]), key.public_key.ciphertext_bytes)
rows = holder.public.load(vector)
blinder = LocalBlinder(b"s")
blinder._scalar[:] = bytes(range(32))
print(json.dumps({
    "kernels": available_kernels(),
    "plain": holder.decrypt(vector),
    "sum": holder.public.store(holder.public.modulus.product(rows)).tobytes().hex(),
    "negated": holder.public.store(holder.public.negate(rows)).tobytes().hex(),
    "blinded": blinder.blind_identifiers([b"x", b"y"]).hex(),
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as pip makes it where the compiler fails, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    done = subprocess.run(
        [*pip, "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        env=NO_COMPILER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_a_wheel_without_a_compiler_computes_the_same_bytes(wheel: Path) -> None:
    assert not list(wheel.rglob("*.so"))
    key = generate_private_key(256, insecure_test_key=True)
    holder = KeyHolder(key, Engine(workers=1))
    rows = holder.public.encode([5, -7, 11])
    stored = holder.public.store(rows)
    blinder = LocalBlinder(b"s", Engine(workers=1).curve())
    blinder._scalar[:] = bytes(range(32))
    done = subprocess.run(
        [sys.executable, "-c", INSIDE],
        input=json.dumps(
            {"folder": str(wheel), "p": key.p, "q": key.q, "rows": stored.tobytes().hex()}
        ),
        env={**os.environ, "PYTHONPATH": str(wheel)},
        cwd=wheel,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    public = holder.public
    assert json.loads(done.stdout) == {
        "kernels": ["gmpy2"],
        "plain": [5, -7, 11],
        "sum": public.store(public.modulus.product(rows)).tobytes().hex(),
        "negated": public.store(public.negate(rows)).tobytes().hex(),
        "blinded": blinder.blind_identifiers([b"x", b"y"]).hex(),
    }
    assert np.array_equal(stored[:1], public.store(rows[:1]))


def test_a_failed_compilation_is_an_error_where_kernels_are_required(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "hatch_build.py", "--out", str(tmp_path)],
        cwd=ROOT,
        env=NO_COMPILER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "did not compile" in done.stderr


@pytest.mark.parametrize("end", ["exit 1", "kill -9 $PPID"])
def test_a_build_that_ends_early_declares_no_library(tmp_path: Path, end: str) -> None:
    compiler, folder = tmp_path / "cc", tmp_path / "boosting/native"
    compiler.write_text(f"#!/bin/sh\ncase $1 in -E) {end};; esac\n")
    compiler.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "hatch_build.py", "--only", "trees", "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "CC": str(compiler)},
        check=False,
    )
    assert done.returncode == (1 if end == "exit 1" else -9)
    left = [path.name for path in folder.iterdir()]
    assert all(name.startswith(".") and name.endswith((".so", ".decl")) for name in left), left
    assert bool(left) == (end != "exit 1"), "git ignores what a killed build leaves"


def test_a_library_of_other_sources_is_refused(tmp_path: Path) -> None:
    source, library = tmp_path / "own.c", tmp_path / "own.so"
    source.write_text("int one;")
    library.touch()
    with pytest.raises(RuntimeError, match=r"own\.so is of other sources: run `python hatch"):
        check(library)
    (tmp_path / "own.decl").write_text(f"// {digest_of(source)}\n")
    check(library)
    for changed in (source, tmp_path / "own.h"):
        changed.write_text("int other;")
        with pytest.raises(RuntimeError, match="other sources"):
            check(library)


def test_a_checkout_without_symbolic_links_is_refused_with_what_to_do(tmp_path: Path) -> None:
    subprocess.run(
        ["git", "-c", "core.symlinks=false", "-c", "safe.directory=*", "clone", "--quiet",
         str(ROOT), str(tmp_path / "checkout")],
        check=True,
    )  # fmt: skip
    shutil.copy(ROOT / "hatch_build.py", tmp_path / "checkout")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps",
         "--wheel-dir", str(tmp_path), str(tmp_path / "checkout")],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "api, boosting, client_agent, coordinator, crypto, examples, services in" in done.stderr
    assert "git clone -c core.symlinks=true" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.whl"))
