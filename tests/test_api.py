"""``import hedgerow``: what a user of Python meets first."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

import hedgerow


def test_import_loads_nothing_heavy_before_it_is_needed() -> None:
    program = (
        "import sys, json, hedgerow; dir(hedgerow); "
        "print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = set(json.loads(said.stdout))
    assert "hedgerow" in loaded
    heavy = {"grpc", "google", "torch", "xgboost", "pandas", "polars", "numpy", "pyarrow", "click"}
    assert not loaded & (heavy | {"sklearn", "sqlalchemy", "pydantic"})


def test_type_checkers_see_the_names_that_are_there() -> None:
    stub = ast.parse(Path(hedgerow.__file__).with_suffix(".pyi").read_text())
    declared = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == hedgerow._PLACES
    for name in declared:
        assert getattr(hedgerow, name).__doc__, name
    assert set(declared) <= set(dir(hedgerow))


def test_the_version_is_that_of_the_package() -> None:
    assert hedgerow.__version__ == importlib.metadata.version("hedgerow")


def test_an_identity_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(hedgerow.FederationError, match=r"tls\.key cannot be read"):
        hedgerow.connect("127.0.0.1:1", tmp_path)
