"""What docs/xgboost-judge.md says passes: XGBoost's own checks, over silos of this process."""

from __future__ import annotations

import multiprocessing as mp
import os
from typing import Any

import pytest
import xgboost

from tests.xgboost import judge

EVERY = int(os.environ.get("JUDGE_EVERY", "6"))
"""Each sixth of them, two or three minutes of a core in all; nightly.yml has all."""


def _each(queue: Any, functions: list[tuple[str, str]]) -> None:
    for module, name in functions:
        queue.put((name, *judge.verdict(module, name, 3)))
    queue.put(None)


@pytest.mark.slow
@pytest.mark.skipif(not xgboost.__version__.startswith("3.2."), reason="the page is of XGBoost 3.2")
def test_what_the_page_says_passes_does() -> None:
    functions = judge.passing()[::EVERY]
    assert len(functions) > 9
    context = mp.get_context("spawn")  # XGBoost's modules have our names in it
    queue = context.Queue()
    process = context.Process(target=_each, args=(queue, functions))
    process.start()
    try:
        found = iter(queue.get, None)
        assert [one for one in found if one[1] != "passes"] == []
    finally:
        process.kill()
        process.join()
