"""Run folders as a finished job leaves them, made without running one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Step
from hedgerow.boosting.job import Booster
from hedgerow.boosting.trees import ensemble
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.services.process.ledgers import head_of
from hedgerow.services.wire import schema as schema_wire

STEP: Step[Any, Any] = Step(
    "trees", Call.TREES, dict, dict, "trees of this silo's rows", Discloses.TREES
)
SCHEMA = Schema(
    (Feature("age"), Feature("job", ("baker", "</script><b>smith", "tailor", "clerk"))),
    "label",
    Task.BINARY,
    2,
)
METRICS = (0.5, 0.75, 0.8125)


def stump(feature: int, categories: tuple[int, ...] = ()) -> Tree:
    """Return a tree of one split."""

    def column(*values: float, dtype: Any = np.float32) -> Any:
        return np.array(values, dtype=dtype)

    return Tree(
        left=column(1, -1, -1, dtype=np.int32),
        right=column(2, -1, -1, dtype=np.int32),
        feature=column(feature, 0, 0, dtype=np.int32),
        threshold=column(0.0 if categories else 41.5, -0.25, 0.5),
        default_left=np.array([True, False, False]),
        gain=column(30.0 if feature == 0 else 10.0, 0, 0),
        cover=column(90, 60, 30),
        weight=column(0.0, -0.25, 0.5),
        categories=((0, np.array(categories, np.int32)),) if categories else (),
    )


def report(job: str = "job-1", metric: str = "auc", silos: tuple[str, ...] = ("north", "south"),
           **changes: Any) -> dict[str, Any]:  # fmt: skip
    """Return report.json of a job of three rounds."""
    told = {
        "schema": 1,
        "job": job,
        "name": "ages & jobs",
        "strategy": "bagging",
        "state": "SUCCEEDED",
        "detail": "",
        "attempts": 1,
        "versions": {"hedgerow": "0.1.0"},
        "silos": [
            {"name": s, "rows": 100, "state": "present", "detail": "", "bytes_up": 33,
             "bytes_down": 60} for s in silos
        ],
        "rounds": [
            {"round": k, "seconds": 0.125, "metrics": {"test": {metric: value}, "train": {
                metric: None}}, "bytes_up": 22, "bytes_down": 40, "silos": list(silos)}
            for k, value in enumerate(METRICS)
        ],
        "bytes": {
            "up": 33 * len(silos), "down": 60 * len(silos),
            "by_step": {"ExchangeTrees": {"up": 33 * len(silos), "down": 60 * len(silos),
                                          "messages": 12, "calls": 6}},
            "by_silo": {s: {"up": 33, "down": 60, "by_step": {"ExchangeTrees": {
                "up": 33, "down": 60, "messages": 6, "calls": 3}}} for s in silos},
            "control": {"up": 7, "down": 9},
        },
        "seconds": 1.5,
        "best_round": 2,
        "model": "model.ubj",
        "artefacts": ["model.ubj", "schema.json"],
        "reveals": "All parties learn the trees.",
        "job_digest": "ab" * 32,
        "plan": {"rounds": 3, "steps": {"ExchangeTrees": {"exchanges": 3, "up": 30, "down": 66}},
                 "cpu_class": "seconds", "notes": ["trees of one split"]},
    }  # fmt: skip
    return {**told, **changes}


def run_folder(folder: Path, **facts: Any) -> Path:
    """Write the run folder of a job with two trees, ledgers and times."""
    told = report(**facts)
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(told))
    (folder / "job.toml").write_text('strategy = "bagging"\n')
    empty = ensemble.blank(SCHEMA, "binary:logistic", Booster(), 0.5)
    model = empty.extend([stump(0), stump(1, (1, 3))], n_steps=2)
    (folder / "model.ubj").write_bytes(model.save())
    (folder / "schema.json").write_bytes(schema_wire.dump(SCHEMA))
    for silo in told["silos"]:
        path = folder / f"ledger-{silo['name']}.jsonl"
        ledger = SiloLedger(path, silo["name"], "coordinator", lambda: 1_700_000_000.0)
        for k in range(3):
            ledger.record(
                job_id=told["job"], step=STEP, at=ExchangeKey(k), kind="Trees", frames=[b"x" * 11]
            )
        ledger.close()
        head_of(path).unlink()
        times = folder / "silos" / silo["name"] / "times.json"
        times.parent.mkdir(parents=True)
        split = {"train": 0.5, "wait": 0.25, "encrypt": 0.125, "send": 0.0625, "ledger": 0.0625}
        times.write_text(json.dumps({"schema": 1, "attempt": 1, "seconds": 1.0, **split}))
    return folder
