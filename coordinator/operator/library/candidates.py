"""What a search tries: the table ``[search]`` of a job file, and the candidates it stands for."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from hedgerow.boosting.errors import FederationError, InvalidJob
from hedgerow.services.process.imports import with_again

METHODS = ("grid", "random", "halving")
ROWS = "rows"
_RANGE = {"low", "high", "log"}

Candidate = dict[str, Any]
"""Values by dotted job key."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a ``[search]`` table says beside the keys to try."""

    method: str = "random"
    """``grid``: every combination. ``random``: drawn, without repeats of a finite grid.
    ``halving``: as random; the best of ``factor`` go on with ``factor`` times the resource."""
    trials: int = 20
    """Candidates of random and halving."""
    metric: str = ""
    """Decides; the job's first one where it is empty."""
    holdout: float = 0.2
    """Share of each silo's rows that trials are scored on."""
    factor: int = 3
    resource: str = ROWS
    """Of halving: ``rows``, or a job key with a whole number, whose value in the job is the
    most."""

    def __post_init__(self) -> None:
        """Raise :class:`InvalidJob` for a value that is out of range."""
        for known in fields(self):
            value, expected = getattr(self, known.name), type(known.default)
            fits = isinstance(value, (int, float) if expected is float else expected)
            if not fits or isinstance(value, bool):
                raise _wrong(known.name, f"a {_NAMES[expected]}", value)
        if self.method not in METHODS:
            raise _wrong("method", " or ".join(METHODS), self.method)
        if self.trials < 1:
            raise _wrong("trials", "at least 1", self.trials)
        if not 0.0 < self.holdout < 1.0:
            raise _wrong("holdout", "a share above 0 and below 1", self.holdout)
        if self.factor < 2:
            raise _wrong("factor", "at least 2", self.factor)

    def rungs(self, n_candidates: int) -> Iterator[tuple[int, float]]:
        """Yield how many candidates train with which share of the resource, the last with all."""
        last = int(math.log(n_candidates, self.factor) + 1e-9) if self.method == "halving" else 0
        for rung in range(last + 1):
            yield math.ceil(n_candidates / self.factor**rung), self.factor ** float(rung - last)


_NAMES: dict[type, str] = {str: "text", int: "whole number", float: "number"}


def read(table: Mapping[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """Tell the settings of a search from the keys to try.

    Returns
    -------
    Settings
    dict
        Lists of values and ranges by dotted job key.

    Raises
    ------
    InvalidJob
        A setting, a list or a range cannot be used, or there is no key.
    """
    known = [each.name for each in fields(Settings)]
    settings = Settings(**{name: table[name] for name in known if name in table})
    space = dict(_flat({key: value for key, value in table.items() if key not in known}, ""))
    for key, values in space.items():
        where = f"[search] {key}"
        if isinstance(values, dict):
            _check_range(values, where)
            if settings.method == "grid":
                raise InvalidJob(f"{where}: a grid needs a list of values, and no range")
        elif not isinstance(values, list) or not values:
            near = difflib.get_close_matches(key, known, 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidJob(
                f"{where}: expected a list of values or {{ low = …, high = … }}, received "
                f"{values!r}{hint}"
            )
    if not space:
        raise InvalidJob("[search]: no key to try, such as booster.eta = [0.1, 0.3]")
    return settings, space


def _flat(table: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """Yield what is to be tried by dotted key; TOML reads an unquoted one as nested tables."""
    for key, value in table.items():
        if isinstance(value, dict) and not ({"low", "high"} & set(value)):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield where + key, list(value) if isinstance(value, tuple) else value


def _check_range(given: dict[str, Any], where: str) -> None:
    if not {"low", "high"} <= set(given) <= _RANGE:
        raise InvalidJob(
            f"{where}: expected low, high and perhaps log, received {', '.join(given)}"
        )
    low, high, log = given["low"], given["high"], given.get("log", False)
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high))
    if not numbers or not low < high or not isinstance(log, bool):
        raise InvalidJob(f"{where}: expected numbers low < high, and log true or false")
    if log and low <= 0:
        raise InvalidJob(f"{where}: a logarithmic range is above 0, received low = {low!r}")


def candidates(settings: Settings, space: Mapping[str, Any], seed: int) -> list[Candidate]:
    """Return what is to be tried, each candidate once; scikit-learn's grid or draws.

    Parameters
    ----------
    space : Mapping
        As :func:`read` returns it.
    seed : int
        Of the draws.

    Raises
    ------
    FederationError
        scikit-learn is not installed.
    """
    with_again("sklearn")
    try:
        from scipy import stats
        from sklearn.model_selection import ParameterGrid, ParameterSampler
    except ModuleNotFoundError as error:
        raise FederationError(
            f"a search needs the extra 'sklearn': pip install 'hedgerow[sklearn]' ({error.name})"
        ) from error
    if settings.method == "grid":
        return _unlike(ParameterGrid(dict(space)))
    drawn: dict[str, Any] = {}
    for key, values in space.items():
        if isinstance(values, list):
            drawn[key] = values
            continue
        low, high = values["low"], values["high"]
        whole = isinstance(low, int) and isinstance(high, int)
        if values.get("log"):
            drawn[key] = stats.loguniform(low, high)
        else:
            drawn[key] = stats.randint(low, high + 1) if whole else stats.uniform(low, high - low)
    trials = settings.trials
    if all(isinstance(values, list) for values in space.values()):
        trials = min(trials, len(ParameterGrid(dict(space))))
    sampler = ParameterSampler(drawn, trials, random_state=seed % (1 << 32))  # the most it takes
    return _unlike({key: _plain(v, space[key]) for key, v in one.items()} for one in sampler)


def _plain(value: Any, values: Any) -> Any:
    """Return a drawn value as a job file has it: whole where both ends are, else of 4 digits."""
    if isinstance(values, list):
        return value
    low, high = values["low"], values["high"]
    if isinstance(low, int) and isinstance(high, int):
        return round(float(value))
    return min(max(float(f"{value:.4g}"), low), high)


def _unlike(candidates: Iterable[Mapping[str, Any]]) -> list[Candidate]:
    return list({json.dumps(one, sort_keys=True): dict(one) for one in candidates}.values())


def _wrong(name: str, expected: str, value: Any) -> InvalidJob:
    return InvalidJob(f"[search] {name}: expected {expected}, received {value!r}")
