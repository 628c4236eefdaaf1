"""Trees on the wire: exact, as float16 leaves, and as indices into shared cuts."""

from dataclasses import replace

import numpy as np
import pytest
import xgboost as xgb

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.uploads import (
    UploadForm,
    cut_columns,
    decode_trees,
    encode_trees,
    uncut,
    with_fences,
)
from hedgerow.boosting.trees.limits import TreeLimits, step_groups
from hedgerow.boosting.trees.loading import trees_of
from hedgerow.boosting.trees.packing import Shrinkage
from tests.boosting.trees.ensembles import KINDS, dataset, parameters, train

KIND = KINDS[1]
CUTS = with_fences(
    [np.linspace(-2, 2, 9, dtype=np.float32) for _ in range(3)] + [np.empty(0, np.float32)]
)


def limits(data, n_steps):
    schema = data.schema
    return TreeLimits(
        step_groups(n_steps, schema.n_outputs, 1),
        tuple(len(f.categories or ()) for f in schema.features),
        8,
    )


def outputs(trees, X):
    return LeafOrdinals.of(trees, X).outputs(np.arange(len(X)))


def grown_on_cuts(data, n_steps=6):
    columns = cut_columns(data.X, CUTS, data.schema)
    rows = xgb.DMatrix(
        columns, data.y, feature_types=data.schema.feature_types, enable_categorical=True
    )
    return trees_of(xgb.train(parameters(KIND), rows, n_steps)), columns


def test_exact_uploads_predict_the_same_to_the_bit():
    data = dataset(KIND, 300, 1)
    trees = trees_of(train(KIND, data, 5))
    form = UploadForm(Shrinkage(0.3, 1.0, 0.3))
    upload = encode_trees(trees, form)
    back = decode_trees(upload, form, data.schema, limits(data, 5))
    assert np.array_equal(outputs(back, data.X), outputs(trees, data.X))
    assert not any(tree.cover.any() for tree in back)


def test_unscrubbed_uploads_keep_statistics():
    data = dataset(KIND, 300, 1)
    trees = trees_of(train(KIND, data, 2))
    form = UploadForm(Shrinkage(0.3, 1.0, 0.3), scrub=False)
    back = decode_trees(encode_trees(trees, form), form, data.schema, limits(data, 2))
    for a, b in zip(trees, back, strict=True):
        assert np.array_equal(a.cover, b.cover)
        assert np.array_equal(a.gain, b.gain)


def test_float16_leaves_are_off_by_their_rounding_only():
    data = dataset(KIND, 300, 1)
    trees = trees_of(train(KIND, data, 5))
    form = UploadForm(Shrinkage(0.3, 1.0, 0.3), leaf_bits=16)
    upload = encode_trees(trees, form)
    exact = encode_trees(trees, UploadForm(Shrinkage(0.3, 1.0, 0.3)))
    assert upload.trees.nbytes + upload.leaves.nbytes < exact.trees.nbytes
    back = decode_trees(upload, form, data.schema, limits(data, 5))
    np.testing.assert_allclose(
        outputs(back, data.X), outputs(trees, data.X), rtol=2**-11, atol=1e-7
    )


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_trees_on_cut_columns_are_trees_on_the_values(missing):
    data = dataset(KIND, 400, 1, missing=missing)
    trees, columns = grown_on_cuts(data)
    restored = uncut(trees, CUTS, data.schema)
    assert np.array_equal(outputs(restored, data.X), outputs(trees, columns))
    on_cut = data.X.copy()  # values equal to a cut go right, like XGBoost's own
    on_cut[:, 0] = np.resize(CUTS[0][1:-1], len(on_cut))
    again = cut_columns(on_cut, CUTS, data.schema)
    assert np.array_equal(outputs(restored, on_cut), outputs(trees, again))


def test_cut_indices_come_back_as_the_cuts():
    data = dataset(KIND, 400, 1)
    trees = uncut(grown_on_cuts(data)[0], CUTS, data.schema)
    form = UploadForm(Shrinkage(0.3, 1.0, 0.3), cuts=CUTS)
    upload = encode_trees(trees, form)
    back = decode_trees(upload, form, data.schema, limits(data, 6))
    assert np.array_equal(outputs(back, data.X), outputs(trees, data.X))
    exact = encode_trees(trees, UploadForm(Shrinkage(0.3, 1.0, 0.3)))
    assert upload.trees.nbytes < exact.trees.nbytes


def test_cut_indices_out_of_range_are_refused():
    data = dataset(KIND, 400, 1)
    trees = uncut(grown_on_cuts(data)[0], CUTS, data.schema)
    upload = encode_trees(trees, UploadForm(Shrinkage(0.3, 1.0, 0.3), cuts=CUTS))
    fewer = UploadForm(Shrinkage(0.3, 1.0, 0.3), cuts=[cuts[:3] for cuts in CUTS])
    with pytest.raises(OfferRejected, match="cut index"):
        decode_trees(upload, fewer, data.schema, limits(data, 6))


def test_leaves_that_are_missing_or_not_finite_are_refused():
    data = dataset(KIND, 200, 1)
    form = UploadForm(Shrinkage(0.3, 1.0, 0.3), leaf_bits=16)
    upload = encode_trees(trees_of(train(KIND, data, 2)), form)
    bad = upload.leaves.copy()
    bad[0] = 0x7C00  # infinity
    for leaves in (bad, bad[1:], None):
        with pytest.raises(OfferRejected):
            decode_trees(replace(upload, leaves=leaves), form, data.schema, limits(data, 2))
