"""The BLAS of the crypto image: products as NumPy's own has them, and no LAPACK."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.federation.processes import ROOT

PRODUCTS = """
import sys
import numpy as np

rng = np.random.default_rng(1)

def drawn(kind, *shape):
    values = rng.normal(size=shape)
    if np.issubdtype(kind, np.complexfloating):
        values = values + 1j * rng.normal(size=shape)
    return values.astype(kind)

found = []
for kind in (np.float32, np.float64, np.complex64, np.complex128):
    A, B, x, y = drawn(kind, 40, 30), drawn(kind, 30, 50), drawn(kind, 30), drawn(kind, 40)
    F = np.asfortranarray(A)
    found += [A @ B, F @ B, B.T @ F.T, A.T.conj() @ F, A @ A.T, A.T @ A, F.T @ F, A @ x, F @ x,
              A[::2, ::3] @ B[::3, ::2], y @ A, A.T @ y, A[:, ::-1] @ x[::-1], x @ x[::-1],
              np.vdot(x, x), np.vdot(A, A), np.dot(x[:1], B[:1]), np.dot(A, kind(2)),
              np.inner(A, A), np.tensordot(A, B, 1)]
np.save(sys.argv[1], np.concatenate([np.ravel(one).astype(complex) for one in found]))
"""


def run(packages: Path | None, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = {} if packages is None else {"PYTHONPATH": str(packages)}
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *words],
        env={**os.environ, **path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.process
def test_numpy_multiplies_as_with_its_own_library(tmp_path: Path) -> None:
    packages, installed = tmp_path / "packages", Path(np.__file__).parents[1]
    for folder in ("numpy", "numpy.libs"):
        shutil.copytree(installed / folder, packages / folder)
    subprocess.run([ROOT / "deploy/images/without-blas", packages], check=True)
    (library,) = (packages / "numpy.libs").iterdir()
    assert library.stat().st_size < 100_000
    values = []
    for name, where in (("theirs", None), ("ours", packages)):
        done = run(where, PRODUCTS, str(tmp_path / f"{name}.npy"))
        assert done.returncode == 0, done.stderr
        values.append(np.load(tmp_path / f"{name}.npy"))
    np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-4)
    lacking = run(packages, "import numpy; numpy.linalg.solve(numpy.eye(2), numpy.ones(2))")
    assert lacking.returncode != 0
    assert "not in this image" in lacking.stderr
