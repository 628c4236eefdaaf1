"""Exponents of bounds are refused where they are decoded, whoever sends them."""

import pytest

from hedgerow.api.federation.v1.masking_pb2 import MaskingPart
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.sums.steps import ExponentBound, ExponentOffer
from hedgerow.services.wire import codec_of


@pytest.mark.parametrize("exponent", [-1075, 1024, 1 << 30])
def test_an_exponent_of_no_float_is_refused(exponent: int) -> None:
    offer = MaskingPart(exponent={"exponent": exponent})
    bound = MaskingPart(bound={"exponent": exponent, "n_silos": 3})
    for kind, part in (
        (ExponentOffer, offer),
        (ExponentBound, bound),
    ):
        with pytest.raises(OfferRejected, match="expected -1074 to 1023"):
            codec_of(kind).decode([part])
