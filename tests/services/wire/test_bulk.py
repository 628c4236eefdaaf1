from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hedgerow.api.federation.v1 import exchange_service_pb2 as service_pb
from hedgerow.api.federation.v1 import masking_pb2 as pb
from hedgerow.services.wire.bulk import LongBytes, frame, head, opened
from hedgerow.services.wire.masking import MORE

REQUEST = service_pb.ExchangeRequest
MASKING = REQUEST.DESCRIPTOR.fields_by_name["masking"].number

sizes = st.one_of(st.integers(0, 300), st.sampled_from([1 << 14, 1 << 20, (1 << 21) + 1]))


@given(n=sizes)
def test_a_frame_is_what_protobuf_writes_and_reads(n: int) -> None:
    data = bytes(range(256)) * (n // 256 + 1)
    part = LongBytes("more", MORE, memoryview(data)[:n])
    written = frame(MASKING, part)
    assert written == REQUEST(masking=pb.MaskingPart(more=data[:n])).SerializeToString()
    assert part.SerializeToString() == pb.MaskingPart(more=data[:n]).SerializeToString()
    assert part.ByteSize() == len(part.SerializeToString())
    again = opened(written, MASKING, "more", MORE)
    assert again is not None
    assert again.WhichOneof("part") == "more"
    assert again.more == data[:n]


@given(number=st.integers(1, 5000), n=st.integers(0, 1 << 30))
def test_a_head_is_a_tag_and_a_length(number: int, n: int) -> None:
    made = head(number, n)
    value = shift = 0
    values = []
    for byte in made:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
    assert values == [number << 3 | 2, n]


@given(
    part=st.one_of(
        st.builds(lambda b: pb.MaskingPart(key=pb.KeyOffer(signature=b)), st.binary(max_size=300)),
        st.builds(
            lambda e: pb.MaskingPart(exponent=pb.ExponentOffer(exponent=e)), st.integers(0, 9)
        ),
        st.just(pb.MaskingPart()),
    )
)
def test_any_other_message_is_left_to_protobuf(part: pb.MaskingPart) -> None:
    written = frame(MASKING, part)
    assert written == REQUEST(masking=part).SerializeToString()
    assert opened(written, MASKING, "more", MORE) is None


@given(data=st.binary(max_size=40), cut=st.integers(0, 40))
def test_bytes_that_are_cut_or_run_on_are_left_to_protobuf(data: bytes, cut: int) -> None:
    whole = frame(MASKING, LongBytes("more", MORE, data))
    if cut < len(whole):
        assert opened(whole[:cut], MASKING, "more", MORE) is None
    assert opened(whole + b"\x00", MASKING, "more", MORE) is None


def varint(value: int, padding: int) -> bytes:
    """A number with ``padding`` bytes more than it takes."""
    low = [value & 0x7F]
    while value := value >> 7:
        low.append(value & 0x7F)
    low += [0] * padding
    return bytes([*(byte | 0x80 for byte in low[:-1]), low[-1]])


@given(
    data=st.binary(max_size=200),
    paddings=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    wrong=st.tuples(st.integers(-1, 1), st.integers(-1, 1)),
)
def test_what_is_opened_protobuf_reads_as_the_same(
    data: bytes, paddings: tuple[int, int], wrong: tuple[int, int]
) -> None:
    part = head(MORE, 0)[:-1] + varint(max(len(data) + wrong[1], 0), paddings[1]) + data
    whole = head(MASKING, 0)[:-1] + varint(len(part) + wrong[0], paddings[0]) + part
    found = opened(whole, MASKING, "more", MORE)
    if found is not None:
        assert REQUEST.FromString(whole) == REQUEST(masking=pb.MaskingPart(more=bytes(found.more)))
    assert found is not None or wrong != (0, 0) or max(paddings) > 3
