"""XGBoost's own functions of :mod:`xgboost.testing`, run with ``hedgerow.xgboost`` in its place.

``python -m tests.xgboost.judge`` runs each over silos of this process and prints the table of
docs/xgboost-judge.md; ``--silos 5`` deals rows to as many, ``--at-once 4`` runs four at a
time, ``--only NAME`` shows one with its traceback, ``--write`` writes the page's table. Each runs
in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
import multiprocessing as mp
import pkgutil
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas
import xgboost.testing
from sklearn.datasets import load_breast_cancer, load_iris

import hedgerow.xgboost as ours
from hedgerow.boosting.errors import FederationError

SECONDS = 900.0
PAGE = Path(__file__).parents[2] / "docs/xgboost-judge.md"
BEGIN, END = "<!-- judged -->\n", "<!-- end -->\n"
ELSEWHERE = {
    "dask": "a Dask cluster is one organisation's",
    "federated": "starts the server of the plugin that XGBoost has deleted",
    "data_iter": "batches of an iterator, and memory outside of a process",
    "plotting": "draws a stock Booster, which `train` returns",
}
"""Modules of what a federation has not."""
_BATCHES = "batches of an iterator, and memory outside of a process"
_BOOSTER = "boosters other than gbtree, too, which have no secure sums of histograms"
FOREIGN = {
    "run_with_iter": _BATCHES, "check_quantile_loss_extmem": _BATCHES,
    "check_extmem_qdm": _BATCHES, "run_cat_container": _BOOSTER,
    "run_cat_container_mixed": _BOOSTER, "run_intercept": _BOOSTER,
    "check_cut": "asserts of the arrays that it is given, and trains nothing",
    "run_update": "`process_type` of update, which grows no trees",
    "run_adaptive": "wants the exact median of labels, which is one row's label",
    "check_get_quantile_cut": "wants cut points of this process' rows alone, from a matrix",
    "check_get_quantile_cut_device": "wants cut points of this process' rows alone, from a matrix",
}  # fmt: skip
"""Functions of what a federation has not."""
LONG = {
    "run_specified_cat", "run_validation", "run_training_continuation",
    "run_recode_dmatrix_predict",
}  # fmt: skip
"""Functions of 4,096 columns, of over twenty seconds of CPU each: no test repeats them."""
CALLS: dict[str, dict[str, list[Any]]] = {
    "run_eta_decay_leaf_output": {
        "objective": ["binary:logistic", "reg:absoluteerror", "reg:quantileerror"]
    },
    "run_base_margin_info": {"DType": [np.asarray]},
    "run_ranking_qid_df": {"impl": [pandas]},
    "run_boost_from_prediction_multi_clasas": dict(
        zip("Xy", ([one] for one in load_iris(return_X_y=True)), strict=True)
    ),
    "run_boost_from_prediction_binary": dict(
        zip("Xy", ([one] for one in load_breast_cancer(return_X_y=True)), strict=True)
    ),
}
"""Arguments of single functions, as XGBoost's own tests give them."""
GIVEN: dict[str, list[Any]] = {
    "device": ["cpu"], "tdevice": ["cpu"], "tree_method": ["hist"], "use_cupy": [False],
    "weighted": [False, True], "learning_rate": [None, 0.5], "n_samples": [100],
    "grow_policy": ["depthwise", "lossguide"], "objective": ["rank:ndcg"],
    "sampling_method": ["uniform"], "impl": [np], "is_qdm": [False], "use_ext": [False],
    "rows": [200], "cols": [5], "cats": [4], "rounds": [3], "n_rounds": [3], "onehot": [True],
    "subsample": [0.5], "on_host": [True], "extmem": [False],
    "multi_strategy": ["one_output_per_tree"], "as_frame": [None, pandas.DataFrame],
    "estimator": [ours.XGBClassifier],
}  # fmt: skip


def functions() -> Iterator[tuple[str, str]]:
    """Yield module and name of each function of a check."""
    for found in pkgutil.iter_modules(xgboost.testing.__path__):
        try:
            module = importlib.import_module(f"xgboost.testing.{found.name}")
        except ImportError:
            continue
        for name, value in vars(module).items():
            own = inspect.isfunction(value) and value.__module__ == module.__name__
            if own and name.startswith(("check_", "run_", "test_")):
                yield found.name, name


def in_place(module: ModuleType) -> None:
    """Give a module ours where it has XGBoost's."""
    for name, value in list(vars(module).items()):
        if value is xgboost:
            setattr(module, name, ours)
        elif getattr(value, "__module__", "").startswith("xgboost") and name in ours.__all__:
            setattr(module, name, getattr(ours, name))


def calls(function: Callable[..., object]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each call of a function; raises KeyError for one that is unknown."""
    names = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    choices = [
        [ours.DMatrix] if name == "DMatrixT"
        else [np.random.default_rng(0)] if name == "rng"
        else [_matrix(len(name))] if name in ("dtrain", "dtest")
        else {**GIVEN, **CALLS.get(function.__name__, {})}[name]
        for name in names
    ]  # fmt: skip
    for one in itertools.product(*choices):
        yield dict(zip(names, one, strict=True))


def _matrix(seed: int) -> ours.DMatrix:
    X = np.random.default_rng(seed).integers(0, 2, (500, 12)).astype(np.float32)
    return ours.DMatrix(X, (X[:, 0] + X[:, 1] * X[:, 2] > 0.5).astype(np.float32))


def verdict(module: str, name: str, silos: int, *, shown: bool = False) -> tuple[str, str]:
    """Return what came of a function, and why."""
    warnings.simplefilter("ignore")
    found = importlib.import_module(f"xgboost.testing.{module}")
    for each in pkgutil.iter_modules(xgboost.testing.__path__):
        loaded = sys.modules.get(f"xgboost.testing.{each.name}")
        if loaded is not None:
            in_place(loaded)
    in_place(xgboost.testing)
    try:
        with ours.collective.simulate(silos, hedgerow_min_cell=1):
            for arguments in calls(getattr(found, name)):
                getattr(found, name)(**arguments)
    except KeyError as error:
        if shown:
            traceback.print_exc()
        return "not called", f"its argument {error}"
    except BaseException as error:
        if shown:
            traceback.print_exc()
        first = str(error).strip().split("\n")[0][:150]
        if isinstance(error, FederationError) or "hedgerow.xgboost has no" in first:
            return "refused", first
        skipped = type(error).__name__ == "Skipped"
        return ("not called" if skipped else "differs"), f"{type(error).__name__}: {first}"
    return "passes", ""


def _work(queue: Any, *given: Any) -> None:
    sys.stdout = sys.stderr = open("/dev/null", "w")  # noqa: SIM115
    queue.put(verdict(*given))


def judged(module: str, name: str, silos: int) -> tuple[str, str]:
    """Return the verdict of a process of its own."""
    if module in ELSEWHERE:
        return "elsewhere", ELSEWHERE[module]
    if name in FOREIGN:
        return "elsewhere", FOREIGN[name]
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_work, args=(queue, module, name, silos))
    process.start()
    try:
        return queue.get(timeout=SECONDS)
    except Exception:
        return "not called", f"no end within {SECONDS:g} s on a loaded machine"
    finally:
        process.kill()
        process.join()


def passing() -> list[tuple[str, str]]:
    """Return the functions that pass by the page, without those of many columns."""
    found = re.findall(r"^\| `(\w+)\.(\w+)` \| passes \|", PAGE.read_text(), re.M)
    return [(module, name) for module, name in found if name not in LONG]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--silos", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = ["| function | | |", "|---|---|---|"]
    found = [one for one in functions() if options.only in ("", one[1])]
    if options.only:
        for module, name in found:
            print(verdict(module, name, options.silos, shown=True))
        return
    with ThreadPoolExecutor(options.at_once) as pool:
        results = pool.map(lambda one: judged(*one, options.silos), found)
        for (module, name), (result, why) in zip(found, results, strict=True):
            lines.append(f"| `{module}.{name}` | {result} | {why.replace('|', '/')} |")
            print(lines[-1], flush=True)
    if options.write:
        text = PAGE.read_text()
        first, last = text.index(BEGIN) + len(BEGIN), text.index(END)
        PAGE.write_text(text[:first] + "\n".join(lines) + "\n" + text[last:])


if __name__ == "__main__":
    main()
