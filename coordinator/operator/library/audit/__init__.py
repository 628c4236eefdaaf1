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

from hedgerow.coordinator.operator import exploring
from hedgerow.coordinator.operator.library.audit import attacks, contribution, groups
from hedgerow.coordinator.operator.library.audit import limits as gates
from hedgerow.coordinator.operator.library.audit.explored import explored_groups
from hedgerow.coordinator.operator.library.audit.subject import (
    AuditRefused,
    auditable,
    digest_of_run,
    opened,
)
from hedgerow.crypto.durable import write_atomically
from hedgerow.services.wire.release import AUDIT as FILE

if TYPE_CHECKING:
    from hedgerow.coordinator.operator.library.frames import Tabular

SCHEMA = 1


def audit(
    folder: str | os.PathLike[str],
    silos: Mapping[str, Tabular] = MappingProxyType({}),
    test: Tabular | None = None,
    *,
    group: Iterable[str] = (),
    explored: str | os.PathLike[str] | None = None,
    limits: Mapping[str, float] = MappingProxyType({}),
    seed: int = 0,
) -> dict[str, Any]:
    """Audit a run, write ``audit.json`` into its folder and return the document.

    Parameters
    ----------
    group : iterable of str
        Columns of the test table whose groups are told apart, such as sex.
    explored : path, optional
        Run folder of an explore job over the silos' group tables (:mod:`.explored`), for groups of
        all silos' rows; needs neither ``silos`` nor ``test``, and attacks nothing without.
    limits : Mapping
        By name, as in the ``[audit]`` table of a file; :mod:`.limits` says which there are. Those
        of the job's own ``[audit]`` stand where a name is not given.
    """
    from hedgerow.coordinator.operator.library import models

    folder = Path(folder)
    limits = gates.of_job(folder) | gates.checked(limits)
    report, digest = models.report_of(folder), digest_of_run(folder)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "job": report["job"],
        "job_digest": report.get("job_digest", ""),
        "strategy": report["strategy"],
        "model": report["model"],
        "model_sha256": digest,
        "attacks": [],
        "groups": [],
        "contributions": [],
    }
    if explored is not None:
        told, _ = exploring.read(Path(explored))
        model, _ = auditable(folder)
        try:
            document["groups"] += map(asdict, explored_groups(told, model, digest))
        except (KeyError, TypeError, AttributeError) as damaged:
            raise AuditRefused(f"{explored}: its statistics are damaged: {damaged!r}") from None
    if test is not None:
        run = opened(folder, silos, test, seed=seed)
        tried = [one for of in (attacks.membership, attacks.reconstruction) for one in of(run)]
        document["attacks"] += map(asdict, tried)
        found = [one for column in group for one in groups.by_group(run, column)]
        document["groups"] += map(asdict, found)
        document["contributions"] += map(asdict, contribution.contributions(run))
    elif explored is None or silos or group:
        raise AuditRefused("test: expected rows with labels that no silo trained on, received none")
    else:
        document |= _of_before(folder / FILE, digest)
    document["limits"] = gates.judged(document, limits)
    document["passed"] = all(one["passed"] for one in document["limits"])
    text = json.dumps(document, indent=1, allow_nan=False)
    write_atomically(folder / FILE, text.encode(), mode=0o644)
    return document


def _of_before(path: Path, digest: str) -> dict[str, Any]:
    """Return what an earlier audit of the same model has found beside groups."""
    try:
        found = json.loads(path.read_text())
        same = found["schema"] == SCHEMA and found["model_sha256"] == digest
        return {part: found[part] for part in ("attacks", "contributions") if same}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
