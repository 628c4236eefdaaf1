"""The audit of a finished run: what its model gives away, whom it serves, who made it.

Everything is computed on this machine, from a run folder and tables that are at hand: those of all
silos after ``hedgerow local``, a silo's own elsewhere. ``audit.json`` has counts and means of rows,
never a row's value; docs/audit.md explains each number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hedgerow.coordinator.operator.library.audit import attacks, contribution, groups
from hedgerow.coordinator.operator.library.audit import limits as gates
from hedgerow.coordinator.operator.library.audit.subject import opened
from hedgerow.crypto.durable import write_atomically
from hedgerow.services.wire.release import AUDIT as FILE

if TYPE_CHECKING:
    from hedgerow.coordinator.operator.library.frames import Tabular

SCHEMA = 1


def audit(
    folder: str | os.PathLike[str],
    silos: Mapping[str, Tabular],
    test: Tabular,
    *,
    group: Iterable[str] = (),
    limits: Mapping[str, float] = MappingProxyType({}),
    seed: int = 0,
) -> dict[str, Any]:
    """Audit a run, write ``audit.json`` into its folder and return the document.

    Parameters
    ----------
    group : iterable of str
        Columns of the test table whose groups are told apart, such as sex.
    limits : Mapping
        By name, as in the ``[audit]`` table of a file; :mod:`.limits` says which there are. Those
        of the job's own ``[audit]`` stand where a name is not given.
    """
    limits = gates.of_job(Path(folder)) | gates.checked(limits)
    run = opened(Path(folder), silos, test, seed=seed)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "job": run.report["job"],
        "job_digest": run.report.get("job_digest", ""),
        "strategy": run.report["strategy"],
        "model": run.report["model"],
        "model_sha256": run.digest,
        "attacks": [
            asdict(one) for of in (attacks.membership, attacks.reconstruction) for one in of(run)
        ],
        "groups": [asdict(one) for column in group for one in groups.by_group(run, column)],
        "contributions": [asdict(one) for one in contribution.contributions(run)],
    }
    document["limits"] = gates.judged(document, limits)
    document["passed"] = all(one["passed"] for one in document["limits"])
    text = json.dumps(document, indent=1, allow_nan=False)
    write_atomically(run.folder / FILE, text.encode(), mode=0o644)
    return document
