"""The notebooks of ``examples/notebooks`` run from the first cell to the last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.late import Late

nbformat: Any = Late("nbformat")
nbclient: Any = Late("nbclient")

NOTEBOOKS = Path(__file__).resolve().parents[2] / "examples/notebooks"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed"
    nbclient.NotebookClient(
        notebook,
        timeout=500,
        startup_timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": NOTEBOOKS}},
    ).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert any("text/html" in out.get("data", {}) for out in outputs)
