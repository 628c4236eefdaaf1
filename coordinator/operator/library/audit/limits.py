"""Limits of a file's ``[audit]`` table, by which a model passes an audit or does not."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hedgerow.boosting.errors import InvalidJob
from hedgerow.coordinator.operator.library.audit.groups import LARGEST
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file

Document = Mapping[str, Any]


def _highest(prefix: str, measure: str) -> Callable[[Document], float | None]:
    """Return what finds the largest upper end of a measure's intervals, of the run's own model."""

    def found(document: Document) -> float | None:
        attacks = [
            one for one in document["attacks"]
            if one["attack"].startswith(prefix) and not one["baseline"]
            and (one["measures"] or document["strategy"] == "bagging")
        ]  # fmt: skip
        if not all(measure in one["measures"] for one in attacks):
            return None  # what was not measured may be the worst
        ends = [one["measures"][measure] for one in attacks]
        if measure == "auc":  # who is mostly wrong is right the other way round
            return max((max(one["high"], 1 - one["low"]) for one in ends), default=None)
        return max((one["high"] for one in ends), default=None)

    return found


def _gained(document: Document) -> float | None:
    """Return by how much trees make guesses better than the adversary's own rows, at most."""
    near = [one for one in document["attacks"] if "within 0.1" in one["measures"]]
    own = {one["silo"]: one["measures"]["within 0.1"]["value"] for one in near if one["baseline"]}
    ends = [
        one["measures"]["within 0.1"]["high"] - own[one["silo"]]
        for one in near
        if not one["baseline"]
    ]
    return max(ends) if ends else None


def _largest(measure: str) -> Callable[[Document], float | None]:
    """Return what finds the largest upper end of a difference between groups."""

    def found(document: Document) -> float | None:
        ends = [
            one["measures"][measure]["high"]
            for one in document["groups"]
            if one["group"] == LARGEST and measure in one["measures"]
        ]
        return max(ends) if ends else None

    return found


def _of_groups(document: Document, measure: str) -> list[Mapping[str, float]]:
    """Return a measure of every group; nothing where one has it not."""
    groups = [one["measures"] for one in document["groups"] if one["group"] != LARGEST]
    return [one[measure] for one in groups] if all(measure in one for one in groups) else []


def _calibration(document: Document) -> float | None:
    ends = [abs(one[end]) for one in _of_groups(document, "calibration") for end in ("low", "high")]
    return max(ends, default=None)


def _auc(document: Document) -> float | None:
    return min((one["low"] for one in _of_groups(document, "auc")), default=None)


LIMITS: dict[str, tuple[str, Callable[[Document], float | None]]] = {
    "membership_auc_max": (
        "upper end of the AUC of any attack on membership", _highest("membership", "auc")
    ),
    "membership_caught_max": (
        "upper end of the share of members caught at 1 % false alarms",
        _highest("membership", "caught"),
    ),
    "reconstruction_gain_max": (
        "upper end of the features guessed within 0.1 deviations, less those without a tree",
        _gained,
    ),
    "group_positive_rate_gap_max": (
        "upper end of the largest difference of positive rates", _largest("positive rate")
    ),
    "group_true_positive_rate_gap_max": (
        "upper end of the largest difference of true positive rates",
        _largest("true positive rate"),
    ),
    "group_false_positive_rate_gap_max": (
        "upper end of the largest difference of false positive rates",
        _largest("false positive rate"),
    ),
    "group_calibration_max": (
        "end of the calibration of any group that is further from 0", _calibration
    ),
    "group_auc_min": ("lower end of the AUC of any group", _auc),
}  # fmt: skip
"""Name of a limit to what it bounds, and how that is found; None where it was not measured."""


APPROVALS = ("approvers", "min_approvals")
"""Keys of ``[audit]`` in a job file that are no limits."""


def of_job(folder: Path) -> dict[str, float]:
    """Return the limits of the job of a run folder; none where it has no ``[audit]``."""
    rules = job_wire.decode(job_file.load(folder / "job.toml")).audit
    return {} if rules is None else dict(rules.limits)


def read(path: Path) -> dict[str, float]:
    """Return the limits of a file's ``[audit]`` table, of a job file's, too.

    Raises
    ------
    InvalidJob
        The file has no such table, or a limit is unknown or no number.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("audit")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJob(f"{path}: expected TOML, received something else: {error}") from error
    if not isinstance(table, dict) or not table:
        raise InvalidJob(f"{path}: expected limits in a table [audit], received none")
    try:
        return checked({name: own for name, own in table.items() if name not in APPROVALS})
    except InvalidJob as error:
        raise InvalidJob(f"{path}: {error}") from error


def checked(table: Mapping[str, Any]) -> dict[str, float]:
    """Return limits as they are, if each is known and a number from 0 to 1."""
    for name, value in table.items():
        if name not in LIMITS:
            raise InvalidJob(f"[audit] {name}: expected one of {', '.join(LIMITS)}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (math.isfinite(value) and 0.0 <= value <= 1.0):
            raise InvalidJob(f"[audit] {name}: expected a number from 0 to 1, received {value!r}")
    return {name: float(value) for name, value in table.items()}


def judged(document: Document, limits: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return each limit with what was found; one whose number was not measured does not pass."""
    return list(_judged(document, checked(limits)))


def _judged(document: Document, limits: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    for name, limit in limits.items():
        found = LIMITS[name][1](document)
        passed = found is not None and (found >= limit if name.endswith("_min") else found <= limit)
        yield {"name": name, "limit": limit, "found": found, "passed": passed}
