"""Job specifications as messages and as the parameters that strategies see.

Messages and dataclasses have the same field names, so both directions go by reflection; a field
that a message does not set takes the dataclass' default. ``lambda`` is ``lambda_`` in Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from hedgerow.api.federation.v1 import job_pb2
from hedgerow.boosting import metrics, warm_start
from hedgerow.boosting.checks import within
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import (
    Approvals,
    Booster,
    ColumnRules,
    DatePart,
    ReleaseAudit,
    WarmStart,
    category_name,
)
from hedgerow.boosting.ports import JobParameters, strategy_of
from hedgerow.boosting.registry import STRATEGIES
from hedgerow.boosting.rounds import base_score
from hedgerow.crypto.vault.interface import LEAST_SILOS
from hedgerow.services.wire import extension
from hedgerow.services.wire.schema import TASKS

DEFAULT_MAX_ATTEMPTS = 3
EXTENSION = "extension"
"""Field of the parameters of a strategy that is a package of its own."""

_DATE_PARTS = {
    value.number: DatePart(value.name.removeprefix("DATE_PART_").lower())
    for value in job_pb2.DatePart.DESCRIPTOR.values
    if value.number
}

Parameters = TypeVar("Parameters")


def parse(spec: bytes) -> job_pb2.JobSpec:
    """Return the message of a serialised JobSpec."""
    try:
        return job_pb2.JobSpec.FromString(spec)
    except DecodeError as error:
        raise InvalidJob("the job is not a JobSpec") from error


def decode(spec: bytes) -> JobParameters:
    """Return the parameters of a serialised JobSpec.

    Raises
    ------
    InvalidJob
        Unknown strategy (the nearest known one is named), parameters of another strategy, or a
        value out of range.
    """
    message = parse(spec)
    check_strategy(message.strategy)
    given = table_of(message)
    if given and given != message.strategy:
        raise InvalidJob(f"the strategy is {message.strategy}, but the job has a table [{given}]")
    strategy = strategy_of(message.strategy)
    label, task = message.label or "label", TASKS[message.task]
    columns, features = _columns(message.columns), tuple(message.features)
    columns.check(label, features, task.value)
    several = columns.more_labels  # whose usual metrics are others: who scores knows names alone
    booster = fill(Booster, message.booster)
    booster.check()
    job = JobParameters(
        name=message.name or message.strategy,
        parameters=fill(strategy.parameters, parameters_of(message)),
        label=label,
        task=task,
        seed=message.seed,
        min_silos=max(message.min_silos, 1),
        # Those who score know names alone: that of failure times has their distribution.
        metrics=metrics.of_job(
            tuple(message.metrics),
            task,
            booster.failure_times,
            booster.objective,
            booster.quantiles,
        )
        or (several and metrics.defaults(task, len(several) + 1)),
        booster=booster,
        features=features,
        columns=columns,
        classes=message.classes,
        step_timeout_seconds=_or(message, "step_timeout_seconds", 600.0),
        start_timeout_seconds=_or(message, "start_timeout_seconds", 120.0),
        silos=tuple(sorted(set(message.silos))),
        has_test=bool(message.test_data),
        keep_model=not message.HasField("keep_model") or message.keep_model,
        warm_start=_warm_start(message) if message.HasField("warm_start") else None,
        group_size=message.group_size or LEAST_SILOS,
        max_close_sums=message.max_close_sums,
        approvals=_approvals(message),
        audit=_audit(message) if message.HasField("audit") else None,
    )
    job.approvals.check()
    if job.audit is not None:
        job.check_audit(job.audit)
    within("", "group_size", job.group_size, LEAST_SILOS, 1_000_000)
    warm_start.check(job)
    base_score.check(job)
    job.check_columns()
    return job


def _warm_start(message: job_pb2.JobSpec) -> WarmStart:
    told = message.warm_start
    return WarmStart(told.run, told.model, told.schema, told.rounds_before)


def _approvals(message: job_pb2.JobSpec | job_pb2.ReleaseAudit) -> Approvals:
    return Approvals(tuple(sorted(set(message.approvers))), message.min_approvals)


def _audit(message: job_pb2.JobSpec) -> ReleaseAudit:
    told = message.audit
    limits = ((field.name, value) for field, value in told.ListFields() if field.has_presence)
    return ReleaseAudit(_approvals(told), tuple(sorted(limits)))


def _columns(message: job_pb2.ColumnRules) -> ColumnRules:
    try:
        dates = {
            name: tuple(_DATE_PARTS[k] for k in own.parts) for name, own in message.dates.items()
        }
    except KeyError as error:
        raise InvalidJob(f"[columns] dates: part number {error} is not known") from None
    return ColumnRules(
        tuple(sorted(dates.items())),
        tuple(message.drop),
        tuple(message.categorical),
        tuple(sorted(message.rename.items())),
        category_name(message.positive),
        message.missing_label,
        message.weight,
        tuple(sorted(message.class_weight.items())),
        tuple(sorted((name, tuple(own.ends)) for name, own in message.ranges.items())),
        tuple(
            sorted(
                (name, tuple(sorted(map(category_name, own.names))))
                for name, own in message.levels.items()
            )
        ),
        message.missing if message.HasField("missing") else None,
        label_upper=message.label_upper,
        event=message.event,
        more_labels=tuple(message.more_labels),
        qid=message.qid,
    )


def check_strategy(name: str) -> None:
    """Raise :class:`InvalidJob` for the name of no strategy; it names the nearest known one."""
    STRATEGIES.require(name)


def table_of(message: job_pb2.JobSpec) -> str:
    """Return the name of the table of a strategy's parameters that a job has, or nothing."""
    given = message.WhichOneof("parameters") or ""
    return (
        message.extension.strategy if STRATEGIES.is_foreign(message.extension.strategy) else given
    )


def message_of(strategy: str) -> type[Any]:
    """Return the type of the message of a strategy's parameters."""
    if STRATEGIES.is_foreign(strategy):
        return extension.parameters_message(strategy_of(strategy).parameters)
    descriptor: Any = job_pb2.JobSpec.DESCRIPTOR.fields_by_name[strategy].message_type
    return GetMessageClass(descriptor)


def parameters_of(message: job_pb2.JobSpec) -> Any:
    """Return the message of a job's parameters; empty where the job has none.

    Raises
    ------
    InvalidJob
        What a package's strategy has is no such message.
    """
    if not STRATEGIES.is_foreign(message.strategy):
        return getattr(message, message.strategy)
    try:
        return message_of(message.strategy).FromString(message.extension.parameters)
    except DecodeError as error:
        raise InvalidJob(f"the table [{message.strategy}] is not one of its parameters") from error


def give_parameters(message: job_pb2.JobSpec, own: Message) -> None:
    """Make a message the parameters of a job whose strategy is set."""
    if STRATEGIES.is_foreign(message.strategy):
        message.extension.strategy = message.strategy
        message.extension.parameters = own.SerializeToString(deterministic=True)
    else:
        getattr(message, message.strategy).CopyFrom(own)


def max_attempts(spec: bytes) -> int:
    """Return how many attempts in a row may fail."""
    return max(int(_or(parse(spec), "max_attempts", DEFAULT_MAX_ATTEMPTS)), 1)


def test_data(spec: bytes) -> str:
    """Return the name of the coordinator's table that a job is evaluated on, or nothing."""
    return parse(spec).test_data


def _or(message: Message, name: str, default: float) -> float:
    return float(getattr(message, name)) if message.HasField(name) else default


def fill(kind: type[Parameters], message: Message) -> Parameters:
    """Return a dataclass with the fields that ``message`` sets and defaults for the others.

    Raises
    ------
    InvalidJob
        A parameter without default is not set, or the dataclass refuses a value.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        name = field.name.rstrip("_")
        descriptor = message.DESCRIPTOR.fields_by_name.get(name)
        if descriptor is None:
            continue
        if descriptor.is_repeated:
            if getattr(message, name):
                values[field.name] = tuple(map(_item, getattr(message, name)))
        elif not descriptor.has_presence or message.HasField(name):
            values[field.name] = getattr(message, name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InvalidJob(
                f"parameter {name} of {_table(message)} has no default: set it in the job"
            )
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise InvalidJob(str(error)) from error


def _item(value: Any) -> Any:
    """Return a list's item; a message is a list itself, its only field."""
    if not isinstance(value, Message):
        return value
    [only] = value.DESCRIPTOR.fields
    return tuple(getattr(value, only.name))


def decode_known(
    spec: bytes, allow: Callable[[str, Sequence[str]], None] = lambda strategy, metrics: None
) -> JobParameters:
    """Return the parameters of a JobSpec that this version knows all of, for who agrees to them.

    Parameters
    ----------
    allow : callable
        Raises where a strategy or metrics may not run; called before a package is imported.

    Raises
    ------
    InvalidJob
        As :func:`decode`, or there are parameters of a newer version, which would be ignored.
    """
    message = parse(spec)
    allow(message.strategy, message.metrics)
    _check_known(message)
    job = decode(spec)
    if STRATEGIES.is_foreign(message.strategy):
        _check_known(parameters_of(message), message.strategy)
    return job


def _check_known(message: Message, table: str = "") -> None:
    if len(UnknownFieldSet(message)):
        raise InvalidJob(
            f"{table or _table(message)} has parameters that this version does not know; leave "
            "them out, or upgrade this silo's agent"
        )
    for field, value in message.ListFields():
        if field.message_type is not None and not field.is_repeated:
            _check_known(value)
        elif field.message_type is not None:
            for inner in value.values() if isinstance(value, Mapping) else value:
                if isinstance(inner, Message):
                    _check_known(inner)


def _table(message: Any) -> str:
    """Return what a job file calls the table of a message."""
    fields = job_pb2.JobSpec.DESCRIPTOR.fields
    found = (f.name for f in fields if f.message_type is message.DESCRIPTOR)
    return next(found, "the job")
