"""Schemas as messages: names and types of columns, never values."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import json_format

from hedgerow.api.federation.v1 import job_pb2, schema_pb2
from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.errors import FOREIGN, OfferRejected, SchemaMismatch
from hedgerow.boosting.exchange import Silo
from hedgerow.services.wire.bounds import MAX_REQUEST_BYTES

TASKS = {
    job_pb2.TASK_UNSPECIFIED: Task.BINARY,
    job_pb2.TASK_BINARY: Task.BINARY,
    job_pb2.TASK_MULTICLASS: Task.MULTICLASS,
    job_pb2.TASK_REGRESSION: Task.REGRESSION,
    job_pb2.TASK_SURVIVAL: Task.SURVIVAL,
    job_pb2.TASK_RANKING: Task.RANKING,
}
_TASK_VALUES = {task: value for value, task in TASKS.items() if value}

MAX_CLASSES = 1 << 16
"""Most classes that a schema may have: margins and trees of a round grow with them."""


def encode(schema: Schema) -> schema_pb2.TableSchema:
    """Return the message of a schema."""
    return schema_pb2.TableSchema(
        features=[
            schema_pb2.FeatureSchema(
                name=feature.name,
                categorical=feature.is_categorical,
                categories=feature.categories or (),
            )
            for feature in schema.features
        ],
        label=schema.label,
        task=_TASK_VALUES[schema.task],
        n_classes=schema.n_classes,
        classes=schema.classes,
        numbered=schema.numbered,
        more_labels=schema.more_labels,
    )


def decode(message: schema_pb2.TableSchema) -> Schema:
    """Return the schema of a message.

    Raises
    ------
    OfferRejected
        A task that is not known, or more than :data:`MAX_CLASSES` classes.
    """
    if message.task not in TASKS:
        raise OfferRejected(f"schema: task number {message.task} is not known")
    if max(message.n_classes, len(message.classes)) > MAX_CLASSES:
        raise OfferRejected(
            f"schema: {max(message.n_classes, len(message.classes))} classes, "
            f"at most {MAX_CLASSES} are taken"
        )
    if len(message.more_labels) >= MAX_CLASSES:
        raise OfferRejected(f"schema: more than {MAX_CLASSES} labels")
    return Schema(
        tuple(
            Feature(given.name, tuple(given.categories) if given.categorical else None)
            for given in message.features
        ),
        message.label,
        TASKS[message.task],
        message.n_classes,
        tuple(message.classes),
        message.numbered,
        tuple(message.more_labels),
    )


def check_size(own: Mapping[Silo, Schema], agreed: Schema) -> None:
    """Raise :class:`SchemaMismatch` where silos' lists together fit no reply; names the longest.

    Every silo is sent the agreed schema: one that is too long would end each of its calls.
    """
    n_bytes = encode(agreed).ByteSize()
    if n_bytes <= MAX_REQUEST_BYTES:
        return
    sizes = {silo: encode(schema).ByteSize() for silo, schema in own.items()}
    longest = max(sizes, key=lambda silo: sizes[silo])
    raise SchemaMismatch(
        f"the agreed schema has {n_bytes} bytes of names and categories, at most "
        f"{MAX_REQUEST_BYTES} are accepted; {longest} brings {sizes[longest]}"
    )


def dump(schema: Schema) -> bytes:
    """Return a schema as the JSON of its message, for a file beside the model."""
    return json_format.MessageToJson(encode(schema), preserving_proto_field_name=True).encode()


def load(data: bytes) -> Schema:
    """Return the schema of :func:`dump`.

    Raises
    ------
    OfferRejected
        ``data`` is not such a file.
    """
    try:
        return decode(json_format.Parse(data, schema_pb2.TableSchema()))
    except (*FOREIGN, json_format.ParseError) as error:
        raise OfferRejected("not a schema file") from error
