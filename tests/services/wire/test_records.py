"""The codec of dataclasses: what goes in comes out, and what a peer could get wrong is refused."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from importlib import import_module
from typing import Annotated, Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from hedgerow import boosting
from hedgerow.api.federation.v1 import tensor_pb2
from hedgerow.boosting import warm_start
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Silo, Step
from hedgerow.boosting.payloads import Elements, Float64s
from hedgerow.boosting.strategies import NAMES
from hedgerow.boosting.sums import steps as sums_steps
from hedgerow.services.wire import codec_of, records


class Colour(Enum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Point:
    x: int
    weights: Float64s


@dataclass(frozen=True)
class Everything:
    name: Silo
    colour: Colour
    maybe: float | None
    numbers: tuple[int, ...]
    points: tuple[Point, ...]
    shares: Mapping[Silo, bytes]
    table: Annotated[NDArray[np.uint16], Elements("<u2", 2)]
    flags: Annotated[NDArray[np.bool_], Elements("|b1", 1)]

    def __post_init__(self) -> None:
        if self.maybe is not None and self.maybe > 9:
            raise ValueError("maybe: expected at most 9")


def steps_in(value: Any) -> Iterator[Step[Any, Any]]:
    if isinstance(value, Step):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from steps_in(getattr(value, one.name))


def test_every_payload_of_every_step_has_a_codec() -> None:
    seen = set()
    for module in pkgutil.walk_packages(boosting.__path__, f"{boosting.__name__}."):
        for value in vars(import_module(module.name)).values():
            for step in steps_in(value):
                seen.add(module.name)
                for payload in (step.offer, step.reply):
                    assert codec_of(payload).payload is payload, (module.name, step.name)
    own = {f"{boosting.__name__}.strategies.{name}.steps" for name in NAMES}
    assert own | {sums_steps.__name__, warm_start.__name__} <= seen


def test_a_payload_without_a_message_is_named() -> None:
    with pytest.raises(AssertionError, match=r"Tensor has no message Point"):
        records.field_of(Point, tensor_pb2.Tensor.DESCRIPTOR)


PROTO = """
name: "test_records.proto" package: "test_records" syntax: "proto3"
dependency: "hedgerow/api/federation/v1/tensor.proto"
enum_type { name: "Colour" value { name: "COLOUR_UNSPECIFIED" number: 0 }
  value { name: "COLOUR_RED" number: 1 } value { name: "COLOUR_GREEN" number: 2 } }
message_type { name: "Point"
  field { name: "x" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "weights" number: 2 type: TYPE_MESSAGE label: LABEL_OPTIONAL
          type_name: ".hedgerow.api.federation.v1.Tensor" } }
message_type { name: "Everything"
  field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "colour" number: 2 type: TYPE_ENUM label: LABEL_OPTIONAL
          type_name: ".test_records.Colour" }
  field { name: "maybe" number: 3 type: TYPE_DOUBLE label: LABEL_OPTIONAL oneof_index: 0
          proto3_optional: true }
  field { name: "numbers" number: 4 type: TYPE_SINT64 label: LABEL_REPEATED }
  field { name: "points" number: 5 type: TYPE_MESSAGE label: LABEL_REPEATED
          type_name: ".test_records.Point" }
  field { name: "shares" number: 6 type: TYPE_MESSAGE label: LABEL_REPEATED
          type_name: ".test_records.Everything.SharesEntry" }
  field { name: "table" number: 7 type: TYPE_MESSAGE label: LABEL_OPTIONAL
          type_name: ".hedgerow.api.federation.v1.Tensor" }
  field { name: "flags" number: 8 type: TYPE_MESSAGE label: LABEL_OPTIONAL
          type_name: ".hedgerow.api.federation.v1.Tensor" }
  nested_type { name: "SharesEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL } }
  oneof_decl { name: "_maybe" } }
message_type { name: "Part"
  field { name: "everything" number: 1 type: TYPE_MESSAGE label: LABEL_OPTIONAL oneof_index: 0
          type_name: ".test_records.Everything" }
  field { name: "more" number: 15 type: TYPE_BYTES label: LABEL_OPTIONAL oneof_index: 0 }
  oneof_decl { name: "part" } }
"""


def messages() -> dict[str, Any]:
    from google.protobuf import text_format

    pool = descriptor_pool.Default()
    pool.AddSerializedFile(
        text_format.Parse(PROTO, descriptor_pb2.FileDescriptorProto()).SerializeToString()
    )
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"test_records.{name}"))
        for name in ("Part", "Everything")
    }


FOUND = messages()
RECORD = records.record_of(Everything, FOUND["Everything"].DESCRIPTOR)
BOXES = records.Boxes(FOUND["Part"])
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FINITE = st.floats(allow_nan=False)
PAYLOADS = st.builds(
    Everything,
    name=st.text(max_size=9).map(Silo),
    colour=st.sampled_from(Colour),
    maybe=st.none() | st.floats(max_value=9, allow_nan=False),
    numbers=st.lists(INT64, max_size=5).map(tuple),
    points=st.lists(
        st.builds(Point, INT64, arrays.arrays(np.float64, st.integers(0, 5), elements=FINITE)),
        max_size=3,
    ).map(tuple),
    shares=st.dictionaries(st.text(max_size=5).map(Silo), st.binary(max_size=9), max_size=4),
    table=arrays.arrays(np.uint16, st.tuples(st.integers(0, 4), st.integers(0, 4))),
    flags=arrays.arrays(np.bool_, st.integers(0, 9)),
)


def through(payload: Everything) -> Any:
    parts = list(records.encode(FOUND["Part"], "everything", RECORD, payload))
    assert all(part.ByteSize() < 4 << 20 for part in parts)
    again = [FOUND["Part"].FromString(part.SerializeToString()) for part in parts]
    return records.decode("everything", RECORD, again)


def same(one: Everything, other: Everything) -> bool:
    plain = ("name", "colour", "maybe", "numbers", "shares")
    return (
        all(getattr(one, name) == getattr(other, name) for name in plain)
        and np.array_equal(one.table, other.table)
        and one.table.shape == other.table.shape
        and np.array_equal(one.flags, other.flags)
        and [p.x for p in one.points] == [p.x for p in other.points]
        and all(
            np.array_equal(p.weights, q.weights)
            for p, q in zip(one.points, other.points, strict=True)
        )
    )


@given(PAYLOADS)
def test_a_payload_survives_its_frames_and_its_box(payload: Everything) -> None:
    assert same(through(payload), payload)
    assert same(BOXES.load(Everything, BOXES.dump(payload)), payload)
    assert BOXES.dump(payload) == BOXES.dump(payload)


def some(**changes: Any) -> Everything:
    values: dict[str, Any] = {
        "name": Silo("a"), "colour": Colour.RED, "maybe": None, "numbers": (), "points": (),
        "shares": {}, "table": np.zeros((2, 2), np.uint16), "flags": np.zeros(3, np.bool_),
    }  # fmt: skip
    return Everything(**{**values, **changes})


def test_large_arrays_follow_the_head_in_order() -> None:
    rng = np.random.default_rng(1)
    points = tuple(Point(k, rng.random(n)) for k, n in enumerate((100_000, 3, 300_000)))
    payload = some(points=points, table=np.full((1000, 700), 7, np.uint16))
    parts = list(records.encode(FOUND["Part"], "everything", RECORD, payload))
    assert len(parts) > 3
    assert same(through(payload), payload)


def head() -> Any:
    (part,) = records.encode(FOUND["Part"], "everything", RECORD, some())
    return part


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda e: e.ClearField("table"), "table: expected a value"),
        (lambda e: setattr(e.table, "type", tensor_pb2.ELEMENT_TYPE_INT64), "ELEMENT_TYPE_INT64"),
        (lambda e: setattr(e.table, "type", 99), "element type 99"),
        (lambda e: e.table.shape.append(1), "3-dimensional"),
        (lambda e: setattr(e.table, "data", b"123"), "expected 8 bytes, received 3"),
        (lambda e: setattr(e.table, "data", b""), "expected 8 bytes, received 0"),
        (lambda e: e.table.shape.__setitem__(0, 1 << 62), "are accepted"),
        (lambda e: setattr(e.flags, "data", b"\0\2\0"), "truth values"),
        (lambda e: setattr(e, "colour", 0), "colour: value 0"),
        (lambda e: setattr(e, "colour", 7), "colour: value 7"),
        (lambda e: setattr(e, "maybe", 10.0), "at most 9"),
    ],
)
def test_what_a_peer_gets_wrong_is_refused_by_name(spoil: Any, why: str) -> None:
    part = head()
    spoil(part.everything)
    with pytest.raises(OfferRejected, match=why):
        records.decode("everything", RECORD, [part])


def test_frames_in_another_order_are_refused() -> None:
    more = FOUND["Part"](more=b"1")
    for parts in ([], [more], [head(), head()], [head(), more]):
        with pytest.raises(OfferRejected):
            records.decode("everything", RECORD, parts)


@given(st.binary(max_size=60))
def test_a_box_of_other_bytes_is_refused(data: bytes) -> None:
    with contextlib.suppress(OfferRejected):
        BOXES.load(Everything, data)


def test_a_dataclass_and_a_message_that_differ_are_an_error_at_once() -> None:
    with pytest.raises(AssertionError, match="has no field"):
        records.Record(Everything, FOUND["Part"].DESCRIPTOR)
