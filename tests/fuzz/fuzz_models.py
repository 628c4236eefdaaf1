"""Fuzz what becomes trees: stock models in both forms, packs, results and checkpoints with trees.

``python -m tests.fuzz.fuzz_models -max_total_time=60`` (libFuzzer's options). An input that raises
anything but the stated refusals, that loads to what does not save again, or that XGBoost cannot
score after it was accepted is a finding; a crash of XGBoost ends the process.
"""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from typing import Any

import atheris
import numpy as np
import xgboost

# These readers only. The rest is imported below.
with atheris.instrument_imports(include=["hedgerow.boosting"]):
    from hedgerow.boosting.errors import DataError, FederationError, ModelRejected, OfferRejected
    from hedgerow.boosting.trees import loading, packing, ubjson
    from hedgerow.boosting.trees.limits import TreeLimits, read_upload

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.rounds.log import History, TreeLog
from hedgerow.boosting.rounds.steps import TreeRound
from hedgerow.boosting.strategies.fedxgbllr import stacked_model
from hedgerow.boosting.strategies.fedxgbllr.checkpoint import Checkpoint
from hedgerow.boosting.strategies.histogram.plan import HistogramPlan, Setup
from hedgerow.boosting.strategies.histogram.stored import BegunRound, RoundCheckpoint
from tests.boosting.trees.ensembles import KINDS, dataset, matrix, train
from tests.federation import stacking, test_histogram
from tests.federation.memory import run_in_memory
from tests.fuzz.running import Provider, altered, changed, fuzz, odd_value

BOOSTERS = [train(kind, dataset(kind, 60, 3), 2) for kind in KINDS]
MODELS = [bytes(booster.save_raw("ubj")) for booster in BOOSTERS]
TEXTS = [json.loads(booster.save_raw("json")) for booster in BOOSTERS]
PACKS = [packing.pack(loading.trees_of(booster)) for booster in BOOSTERS[:4]]
DOCUMENTS = [ubjson.read(model) for model in MODELS]
ROWS = [matrix(dataset(kind, 5, 4)) for kind in KINDS]


def altered_arrays(document: Any, provider: Provider) -> Any:
    """Change a UBJSON document in one place: an element, a length, a type, a value."""
    if isinstance(document, np.ndarray):
        out = document.copy()
        kind = provider.ConsumeIntInRange(0, 9)
        if kind == 0:
            return out[: provider.ConsumeIntInRange(0, len(out))]
        if kind == 1:
            return np.concatenate([out, out[:1]])
        if kind == 2:
            return odd_value(provider)
        if len(out):
            at = provider.ConsumeIntInRange(0, len(out) - 1)
            if out.dtype.kind == "f":
                out[at] = provider.ConsumeFloat()
            else:
                limits = np.iinfo(out.dtype)
                wide = provider.ConsumeBool()
                most = int(limits.max) if wide else min(int(limits.max), len(out) + 1)
                out[at] = provider.ConsumeIntInRange(
                    int(limits.min) if wide else -1 * (limits.min < 0), most
                )
        return out
    if isinstance(document, dict) and document:
        key = sorted(document)[provider.ConsumeIntInRange(0, len(document) - 1)]
        if not provider.ConsumeIntInRange(0, 29):
            return {k: v for k, v in document.items() if k != key}
        return {**document, key: altered_arrays(document[key], provider)}
    if isinstance(document, list) and document and provider.ConsumeIntInRange(0, 9):
        at = provider.ConsumeIntInRange(0, len(document) - 1)
        return [*document[:at], altered_arrays(document[at], provider), *document[at + 1 :]]
    return altered(document, provider)


def model_of(provider: Provider) -> tuple[int, bytes]:
    """Return the number of a kind, and bytes that once were a model of it."""
    number = provider.ConsumeIntInRange(0, len(KINDS) - 1)
    form = provider.ConsumeIntInRange(0, 4)
    if form == 0:
        document = TEXTS[number]
        for _ in range(provider.ConsumeIntInRange(1, 3)):
            document = altered(document, provider)
        return number, json.dumps(document).encode()
    if form == 1:
        return number, changed(MODELS[number], provider)
    document = DOCUMENTS[number]
    for _ in range(provider.ConsumeIntInRange(1, 3)):
        document = altered_arrays(document, provider)
    try:
        return number, ubjson.write(document)
    except (ValueError, OverflowError, KeyError, AttributeError, TypeError, ArithmeticError):
        return number, b""
    except Exception as error:
        if type(error).__name__ != "error":  # struct's
            raise
        return number, b""


def scored(model: Any, saved: bytes, number: int) -> None:
    """Score a few rows, natively: what was accepted is sound, as saved and as silos load it."""
    n_features = model.about.n_features
    if n_features > 64 or len(model.trees) > 256:
        return
    rows = ROWS[number] if n_features == 4 else xgboost.DMatrix(np.zeros((2, n_features)))
    if zlib.crc32(saved) % 2:
        booster = xgboost.Booster({"nthread": 1}, model_file=bytearray(saved))
    else:
        booster = model.booster()
    booster.predict(rows, output_margin=True, validate_features=False)


def model(provider: Provider) -> None:
    """Load a model; what loads can be saved, loads again as the same, and can be scored."""
    number, raw = model_of(provider)
    try:
        found = loading.load(raw)
    except ModelRejected:
        return
    saved = found.save()
    assert loading.load(saved).save() == saved
    scored(found, saved, number)


LIMITS = TreeLimits((0, 0), (0, 0, 0, 9), max_depth=5)


def pack(provider: Provider) -> None:
    """Read an upload."""
    valid = PACKS[provider.ConsumeIntInRange(0, len(PACKS) - 1)]
    try:
        trees = read_upload(changed(valid, provider), LIMITS, factor=provider.ConsumeFloat())
    except OfferRejected:
        return
    assert all(np.isfinite(tree.threshold).all() for tree in trees)


LOG = TreeLog([TreeRound.of(2, [(Silo("ash"), 0.5, PACKS[0])])]).encode(History(0.5))
START = loading.load(MODELS[0]).slice(0)


def bagging(provider: Provider) -> None:
    """Read bagging's checkpoint, and the model in it."""
    try:
        log, _ = TreeLog.decode(changed(LOG, provider))
        log.ensemble(START)
    except FederationError:
        return


JOB = test_histogram.plain_job(rounds=2)
PLAN = HistogramPlan.of(JOB.parameters, JOB, test_histogram.DATA.schema)  # type: ignore[arg-type]
SILOS = test_histogram.silos_of(test_histogram.DATA, (300, 300, 300))
_outcome = test_histogram.run(JOB, SILOS)
assert _outcome.error is None, _outcome.error
PLAYED = _outcome.rounds[-1].checkpoint
BEGUN = BegunRound(
    1,
    ("silo-0",),
    RoundCheckpoint.decode(PLAYED).state.model,
    None,  # type: ignore[arg-type,union-attr]
).encode()


def histogram(provider: Provider) -> None:
    """Read histogram boosting's checkpoint or the record of a begun round, and the model in it."""
    try:
        if provider.ConsumeBool():
            state = RoundCheckpoint.decode(changed(PLAYED, provider)).state
            if state is not None:
                opening = Setup.of(state.terms, PLAN.schema)
                PLAN.read_model(state.model.tobytes(), opening, "a test")
        else:
            BegunRound.decode(changed(BEGUN, provider))
    except FederationError:
        return


STACKED_JOBS = [
    stacking.job(Task.BINARY, stacking.small(combiner=name, trees=4))
    for name in ("mean", "leaves", "dense")
]
STACKED_DATA = stacking.silos(Task.BINARY, 2)
STACKED = [run_in_memory(job, STACKED_DATA) for job in STACKED_JOBS]
STACKED_SCHEMA = stacking.table(Task.BINARY, 0, 0).schema
READ = (stacked_model.ENSEMBLE, stacked_model.HEAD, stacked_model.MANIFEST)
stacked_model.load = lru_cache(16)(loading.load)  # most inputs leave the trees as they are


def stacked(provider: Provider) -> None:
    """Read FedXGBllr's checkpoint, or the files of its result and score rows by them."""
    number = provider.ConsumeIntInRange(0, len(STACKED) - 1)
    job, outcome = STACKED_JOBS[number], STACKED[number]
    try:
        if provider.ConsumeBool():
            raw = changed(outcome.rounds[-1].checkpoint, provider)
            Checkpoint.decode(job.parameters, job, STACKED_SCHEMA, raw)  # type: ignore[arg-type]
            return
        valid = outcome.artefact.files  # type: ignore[union-attr]
        name = READ[provider.ConsumeIntInRange(0, len(READ) - 1)]
        raw = changed(valid[name], provider)
        if name == stacked_model.MANIFEST and provider.ConsumeBool():
            raw = json.dumps(altered(json.loads(valid[name]), provider)).encode()
        found = stacked_model.StackedModel.load({**valid, name: raw})
        found.margins(STACKED_DATA["s00"].X[:5])
    except (ModelRejected, DataError, FederationError):
        return


TARGETS = {
    "model": model,
    "pack": pack,
    "bagging": bagging,
    "histogram": histogram,
    "stacked": stacked,
}

if __name__ == "__main__":
    fuzz(TARGETS, "-len_control=0", "-max_len=1024")
