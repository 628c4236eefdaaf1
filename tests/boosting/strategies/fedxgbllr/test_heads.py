"""Networks over tree outputs: sizes of the paper, and torch's own layers as the oracle."""

from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.strategies.fedxgbllr.heads import Head, HeadKind, head_margins
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals, LeafTable
from tests.late import Late

torch: Any = Late("torch")
KINDS = tuple(HeadKind)


def random_leaves(n_rows, n_trees, seed, n_outputs=1):
    rng = np.random.default_rng(seed)
    offsets = np.arange(n_trees + 1) * 5
    values = rng.normal(0, 0.4, n_trees * 5).astype(np.float32)
    table = LeafTable(values, offsets, np.arange(n_trees) % n_outputs)
    return LeafOrdinals(table, rng.integers(0, 5, (n_rows, n_trees)).astype(np.uint8))


def groups(head):
    return np.arange(head.n_inputs) % head.n_outputs


def some_weights(head, seed):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, head.n_parameters).astype(np.float32)


def torch_network(head, weights):
    """Return the plain torch module with these weights."""
    state = {name: torch.from_numpy(value) for name, value in head.state(weights).items()}
    nn = torch.nn
    outer = nn.Linear(head.shapes["outer.weight"][1], head.n_outputs)
    if head.kind is HeadKind.DENSE:
        inner = nn.Linear(head.n_inputs, 256)
        network = nn.Sequential(inner, nn.ReLU(), outer)
    else:
        width = 3 if head.kind is HeadKind.CONV3 else head.block_width
        pad = {"padding": 1} if head.kind is HeadKind.CONV3 else {"stride": width}
        inner = nn.Conv1d(1, head.channels, width, **pad)
        network = nn.Sequential(nn.Unflatten(1, (1, -1)), inner, nn.ReLU(), nn.Flatten(), outer)
    for layer, name in ((inner, "inner"), (outer, "outer")):
        layer.load_state_dict({p: state[f"{name}.{p}"] for p in ("weight", "bias")})
    return network


@pytest.mark.parametrize(("n_silos", "count"), [(2, 16193), (5, 6785), (10, 3905)])
def test_network_has_the_papers_number_of_parameters(n_silos, count):
    assert Head(HeadKind.CNN, n_silos, 500 // n_silos).n_parameters == count


def test_ablations_have_the_papers_numbers_of_parameters():
    assert Head(HeadKind.CONV3, 5, 100).n_parameters == 32257
    assert Head(HeadKind.DENSE, 5, 100).n_parameters == 128513


def test_a_multiclass_network_reads_a_silos_trees_of_all_classes_at_once():
    head = Head(HeadKind.CNN, n_blocks=4, block_width=10 * 3, n_outputs=3)
    assert head.n_parameters == 64 * 3 * 10 + 64 + 64 * 4 * 3 + 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_forward_pass_equals_torchs_layers(kind, n_outputs):
    head = Head(kind, 3, 6, n_outputs, channels=8)
    weights = some_weights(head, 1)
    outputs = np.random.default_rng(2).normal(size=(11, 18)).astype(np.float32)
    with torch.no_grad():
        expected = torch_network(head, weights)(torch.from_numpy(outputs)).numpy()
    np.testing.assert_allclose(head.margins(weights, outputs), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_state_and_flat_are_inverse(kind):
    head = Head(kind, 3, 6, 2, channels=8)
    weights = some_weights(head, 1)
    assert np.array_equal(head.flat(head.state(weights)), weights)


@pytest.mark.parametrize("kind", KINDS)
def test_margins_of_leaf_ordinals_equal_those_of_the_outputs(kind):
    head = Head(kind, 2, 4, channels=5)
    leaves = random_leaves(37, 8, seed=0)
    weights = some_weights(head, 3)
    expected = head.margins(weights, leaves.outputs(np.arange(37)))
    np.testing.assert_allclose(head_margins(head, weights, leaves), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_learnt_rates_are_the_mean_derivative_by_each_trees_output(kind, n_outputs):
    head = Head(kind, 3, 4, n_outputs, channels=6)
    weights = some_weights(head, 5)
    outputs = np.random.default_rng(6).normal(size=(20, 12)).astype(np.float32)
    at = torch.from_numpy(outputs).requires_grad_()
    margins = torch_network(head, weights)(at)
    expected = [
        torch.autograd.grad(margins[:, c].sum(), at, retain_graph=True)[0].mean(0).numpy()
        for c in range(n_outputs)
    ]
    share = head.active(weights, outputs) / len(outputs)
    np.testing.assert_allclose(head.rates(weights, share), expected, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_a_network_starts_at_the_mean_of_the_ensembles(kind, n_outputs):
    head = Head(kind, 4, 6, n_outputs, channels=2 * n_outputs)
    outputs = np.random.default_rng(2).normal(size=(50, 24)).astype(np.float32)
    of_group = outputs.reshape(50, 4, 6 // n_outputs, n_outputs)
    start = head.initial(np.random.default_rng(7), groups(head))
    np.testing.assert_allclose(
        head.margins(start, outputs), of_group.sum(axis=2).mean(axis=1), atol=1e-5
    )


def test_inner_start_weights_are_kaimings_and_depend_on_the_seed_alone():
    head = Head(HeadKind.CNN, 10, 50)
    first, again = (head.initial(np.random.default_rng(7), groups(head)) for _ in range(2))
    assert np.array_equal(first, again)
    arrays = head.arrays(first)
    inner, bound = arrays["inner.weight"], np.sqrt(6 / 50)
    assert np.abs(inner).max() == pytest.approx(bound)
    assert inner[2:].std() == pytest.approx(bound / np.sqrt(3), rel=0.05)
    assert not arrays["inner.bias"].any()


def test_weights_of_another_size_are_refused():
    head = Head(HeadKind.CNN, 2, 3)
    with pytest.raises(ValueError, match="expected"):
        head.arrays(np.zeros(head.n_parameters + 1, np.float32))
