from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.api.federation.v1 import masking_pb2 as pb
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.sums.steps import (
    KeyOffer,
    KeyRoster,
    MaskedVector,
    PairSeeds,
    PlainVector,
    PresentSet,
    SealedShares,
    SetSignature,
    Total,
    Unmasking,
)
from hedgerow.crypto.fixed_point import residue_dtype
from hedgerow.services.wire import codec_of
from hedgerow.services.wire.masking import PIECE_BYTES
from tests.federation.memory import again


def through(payload: Any) -> Any:
    codec = codec_of(type(payload))
    parts = list(codec.encode(payload))
    assert all(part.ByteSize() <= PIECE_BYTES + 4096 for part in parts)
    return codec.decode(again(part) for part in parts)


names = st.text(min_size=1, max_size=8).map(Silo)
values = st.dictionaries(names, st.binary(max_size=40), max_size=6)
sets = st.sets(names, max_size=5).map(lambda found: tuple(sorted(found)))
keys = st.builds(KeyOffer, st.binary(min_size=32, max_size=32), st.binary(), st.binary())


@given(
    payload=st.one_of(
        keys,
        st.dictionaries(names, keys, min_size=1, max_size=4).map(KeyRoster),
        values.map(SealedShares),
        values.map(PairSeeds),
        values.map(Unmasking),
        st.binary(max_size=80).map(SetSignature),
        st.builds(PresentSet, sets, values, st.booleans()),
    )
)
def test_small_payloads_come_back_as_they_were(payload: Any) -> None:
    assert through(payload) == payload


@pytest.mark.parametrize("ring_bits", [32, 48, 64])
@pytest.mark.parametrize("n", [0, 1, 400_001])
def test_vectors_come_back_as_they_were_in_frames_of_a_mebibyte(ring_bits: int, n: int) -> None:
    rng = np.random.default_rng(n)
    residues = rng.integers(0, 1 << ring_bits, n, dtype=np.uint64)
    residues = residues.astype(residue_dtype(ring_bits))
    plain = through(PlainVector(residues, ring_bits))
    masked = through(MaskedVector(residues, ring_bits, b"c" * 32, b"sig", (Silo("x"),)))
    total = through(Total(residues, ring_bits, (Silo("a"), Silo("b"))))
    for payload in (plain, masked, total):
        assert payload.values.dtype == residues.dtype
        assert payload.ring_bits == ring_bits
        np.testing.assert_array_equal(payload.values, residues)
    assert (masked.commitment, masked.signature) == (b"c" * 32, b"sig")
    assert masked.bound == ("x",)
    assert total.present == ("a", "b")


def test_a_residue_takes_its_rings_width_on_the_wire() -> None:
    residues = np.zeros(100_000, dtype=np.uint64)
    sizes = {}
    for ring_bits in (32, 48, 64):
        payload = PlainVector(residues.astype(residue_dtype(ring_bits)), ring_bits)
        frames = codec_of(PlainVector).encode(payload)
        sizes[ring_bits] = sum(len(frame.SerializeToString()) for frame in frames)
        assert 0 <= sizes[ring_bits] - 100_000 * ring_bits // 8 < 40


def test_many_boxes_travel_in_several_frames() -> None:
    boxes = {Silo(f"silo-{k}"): bytes(300_000) for k in range(9)}
    assert through(SealedShares(boxes)) == SealedShares(boxes)


def vector(**fields: Any) -> pb.MaskingPart:
    return pb.MaskingPart(vector=pb.ResidueVector(**fields))


VALUE = pb.SiloValue(silo="a", value=b"1")


@pytest.mark.parametrize(
    ("payload", "parts", "why"),
    [
        (PlainVector, [], "expected 0 bytes"),
        (PlainVector, [vector(ring_bits=40, n_values=1, data=bytes(5))], "40 bits"),
        (PlainVector, [vector(ring_bits=64, n_values=2, data=bytes(8))], "8 came"),
        (PlainVector, [vector(ring_bits=64, n_values=1, data=bytes(9))], "more came"),
        (PlainVector, [vector(ring_bits=64, n_values=1 << 40)], "too long"),
        (PlainVector, [pb.MaskingPart(more=b"12345678")], "more came"),
        (
            MaskedVector,
            [vector(ring_bits=64, n_values=1, data=bytes(8))] * 2,
            "vector came",
        ),
        (KeyOffer, [pb.MaskingPart(key=pb.MaskingKey(public_key=bytes(31)))], "32 bytes"),
        (KeyOffer, [], "nothing came"),
        (KeyOffer, [pb.MaskingPart(key=pb.MaskingKey(public_key=bytes(32)))] * 2, "at most 1"),
        (KeyRoster, [pb.MaskingPart(key=pb.MaskingKey(public_key=bytes(32)))], "without its silo"),
        (
            KeyRoster,
            [pb.MaskingPart(key=pb.MaskingKey(silo="a", public_key=bytes(32)))] * 2,
            "came before",
        ),
        (
            Unmasking,
            [pb.MaskingPart(values=pb.SiloValues(values=[VALUE, VALUE]))],
            "came before",
        ),
        (PairSeeds, [pb.MaskingPart(values=pb.SiloValues(values=[pb.SiloValue()]))], "without"),
        (SealedShares, [pb.MaskingPart(signature=b"1")], "signature came"),
        (PresentSet, [pb.MaskingPart(set=pb.SumSet(present=["b", "a"]))], "sorted"),
        (PresentSet, [pb.MaskingPart(set=pb.SumSet(present=["a", "a"]))], "sorted"),
        (SetSignature, [pb.MaskingPart()], "None came"),
    ],
)
def test_what_no_silo_would_send_is_rejected(
    payload: type[Any], parts: list[pb.MaskingPart], why: str
) -> None:
    with pytest.raises(OfferRejected, match=why):
        codec_of(payload).decode(iter(parts))
