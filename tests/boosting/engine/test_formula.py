"""Losses that jobs write down: derivatives are sympy's, and nothing but a formula is read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine import formula
from hedgerow.boosting.engine.formula import MOST_DEPTH, MOST_PARTS, Formula
from hedgerow.boosting.engine.objective import check_parameters, objective_of, unusual_loss
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster

BUILT_IN = {
    "reg:squarederror": ("(margin - label)**2 / 2", "", {}),
    "lse": ("(margin - label)**2", "", {}),
    "binary:logistic": ("log(1 + exp(margin)) - label * margin", "", {}),
    "binary:hinge": (
        "where(margin * (2*label - 1) < 1, 1 - margin * (2*label - 1), 0)",
        "where(margin * (2*label - 1) < 1, 1, 0)",
        {},
    ),
    "lae": ("abs(margin - label)", "1", {}),
    "reg:pseudohubererror": ("4 * (sqrt(1 + ((margin - label) / 2)**2) - 1)", "", {"slope": 2.0}),
    "fair": (
        "9 * (abs(margin - label) / 3 - log(1 + abs(margin - label) / 3))",
        "9 / (abs(margin - label) + 3)**2",
        {},
    ),
    "log_cosh": ("log((exp(margin - label) + exp(label - margin)) / 2)", "", {}),
    "reg:tweedie": ("2 * label * exp(-margin / 2) + 2 * exp(margin / 2)", "", {}),
    "count:poisson": ("exp(margin) - label * margin", "exp(margin + 0.7)", {}),
    "reg:gamma": ("margin + label * exp(-margin)", "", {}),
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_formula_of_an_objective_has_its_gradients(name: str) -> None:
    loss, hessian, other = BUILT_IN[name]
    task = Task.BINARY if name.startswith("binary") else Task.REGRESSION
    theirs = objective_of(name, task, Booster(huber_slope=other.get("slope", 1.0), fair_c=3.0))
    ours = objective_of(name, task, Booster(loss=loss, hessian=hessian))
    draws = np.random.default_rng(0)
    margins = draws.normal(size=(5000, 1)).astype(np.float32)
    labels = draws.integers(0, 2, 5000) + (0.0 if task is Task.BINARY else 0.5)
    weight = draws.uniform(0.5, 2, 5000)
    for one, other_one in zip(
        ours.gradients(margins, labels, weight), theirs.gradients(margins, labels, weight),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(one, other_one, rtol=1e-6, atol=1e-6)
    assert (ours.model_name, ours.start_rule) == (theirs.model_name, theirs.start_rule)
    assert ours.bound is None
    assert ours.curves
    assert not ours.exponential


_LEAVES = st.sampled_from(["margin", "label", "2", "0.5"])


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]} / (1 + ({t[1]})**2))"),
        inner.map(lambda x: f"exp(-({x})**2)"),
        inner.map(lambda x: f"log(1 + ({x})**2)"),
        inner.map(lambda x: f"sqrt(3 + ({x})**2)"),
        inner.map(lambda x: f"(2 + ({x})**2)**-1.5"),
        st.tuples(inner, inner).map(lambda t: f"min({t[0]}, {t[1]} + 0.37)"),
        st.tuples(inner, inner).map(lambda t: f"max({t[0]} - 0.61, {t[1]}, -0.3)"),
        st.tuples(inner, inner).map(lambda t: f"abs({t[0]} - {t[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"where({t[0]} <= {t[1]}, {t[1]}, -{t[2]})"),
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.recursive(_LEAVES, _joined, max_leaves=6))
def test_derivatives_are_sympys(text: str) -> None:
    sympy = pytest.importorskip("sympy")
    margin, label = sympy.symbols("margin label", real=True)
    whole = eval(  # of the test's own text
        text.replace("where(", "Where("),
        {
            "margin": margin, "label": label, "exp": sympy.exp, "log": sympy.log,
            "sqrt": sympy.sqrt, "abs": sympy.Abs, "min": sympy.Min, "max": sympy.Max,
            "Where": lambda asked, yes, no: sympy.Piecewise((yes, asked), (no, True)),
        },
    )  # fmt: skip
    points = [(0.83, -0.41), (-1.27, 0.59), (0.19, 1.73)]
    m, y = np.array(points).T
    with np.errstate(all="ignore"):
        found = formula._jet(formula._parsed("loss", text), m, y)
    for order, own in enumerate(found):
        wanted = sympy.diff(sympy.sympify(whole), margin, order) if order else sympy.sympify(whole)
        for k, at in enumerate(points):
            expected = complex(wanted.subs({margin: at[0], label: at[1]}).evalf())
            assert abs(expected.imag) < 1e-12
            told = 0.0 if own is None else float(np.broadcast_to(own, 3)[k])
            assert math.isclose(told, expected.real, rel_tol=1e-9, abs_tol=1e-9), (order, at)


HOSTILE = [
    "__import__('os').system('true')", "().__class__", "margin.dtype", "[margin][0]", "lambda: 1",
    "open('x')", "exp", "exp(margin, label)", "exp(x=margin)", "exp(*margin)", "max(margin)",
    "margin if label else 1", "(margin := 3)", "margin and label", "not margin", "~margin",
    "margin < label", "where(margin, 1, 2)", "where(0 < margin < 1, 1, 2)", "margin ** label",
    "2 ** margin", "margin % 2", "margin // 2", "margin @ label", "True", "None", "'margin'",
    "1j * margin", "1e999 * margin", "9" * 900, "f'{margin}'", "x + margin", "margin; label",
    "margin\n+ label)", "#", "", " ", "\0", "m\u0430rgin ** 2", "yield margin", "await margin",
    "(" * 400 + "margin" + ")" * 400, "-" * 990 + "margin", "abs(" * 150 + "margin" + ")" * 150,
    "+".join(["margin"] * 140), "margin ** 2 + " + "1 + " * 250 + "1", "margin" * 200,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_formula_is_refused_in_a_line(text: str) -> None:
    for given_ in ({"loss": text}, {"loss": "margin ** 2", "hessian": text}):
        if given_ == {"loss": ""} or given_.get("hessian") == "":
            continue  # none was given
        with pytest.raises(InvalidJob, match=r"^\[booster\] (loss|hessian): expected") as said:
            objective_of("reg:squarederror", Task.REGRESSION, Booster(**given_))
        assert len(str(said.value)) < 400
        assert "\n" not in str(said.value)


@settings(max_examples=300, deadline=None)
@given(st.text("margilbexpo*/+-(), 0123456789.<>=&|~^%[]{}'\"_:", max_size=60))
def test_any_text_is_a_formula_or_refused(text: str) -> None:
    try:
        g, h = Formula(text).gradients(np.zeros(3), np.ones(3))
    except InvalidJob:
        return
    assert np.isfinite(g).all()
    assert np.isfinite(h).all()


def test_a_formula_is_bounded_in_size_and_depth() -> None:
    wide = f"max(margin{', 1' * (MOST_PARTS - 2)})"
    deep = "margin ** 2"
    for _ in range(MOST_DEPTH - 2):
        deep = f"abs({deep})"
    for text in (wide, deep):
        Formula(text).gradients(np.zeros(1), np.zeros(1))
    with pytest.raises(InvalidJob, match="200 parts and 64 levels at most"):
        Formula(f"{wide} + 1").gradients(np.zeros(1), np.zeros(1))
    with pytest.raises(InvalidJob, match="200 parts and 64 levels at most"):
        Formula(f"abs({deep})").gradients(np.zeros(1), np.zeros(1))


def test_rows_without_a_finite_derivative_have_none_and_no_refusal_tells_of_them() -> None:
    of = Formula("where(label == 42, exp(1e6 * margin), log(margin) + margin ** 2)")
    of.check()
    g, h = of.gradients(np.array([1.0, 1.0, 0.0, -1.0, 2.0]), np.array([42.0, 1, 1, 1, 1]))
    assert g.tolist() == [0, 3, 0, -3, 4.5]
    assert h.tolist() == [0, 1, 0, 1, 1.75]
    # A curvature below zero is no step away from the minimum.
    assert Formula("-(margin ** 2)").gradients(np.ones(1), np.ones(1))[1].tolist() == [0]


def test_a_loss_without_slope_or_curvature_is_refused_before_anyone_trains() -> None:
    with pytest.raises(InvalidJob, match="loss: expected one that changes with margin"):
        Formula("label ** 2").check()
    with pytest.raises(InvalidJob, match="set hessian = '1'"):
        Formula("abs(margin - label)").check()
    with pytest.raises(InvalidJob, match="hessian: expected a second derivative above 0"):
        Formula("abs(margin - label)", "-1").check()
    Formula("max(0, abs(margin - label) - 50)**2").check()


def test_objectives_whose_trees_take_more_than_a_rows_gradients_have_no_loss_of_a_job() -> None:
    loss = Booster(loss="(margin - label)**2")
    for name, task in (
        ("multi:softprob", Task.MULTICLASS), ("survival:aft", Task.SURVIVAL),
        ("rank:ndcg", Task.RANKING), ("reg:absoluteerror", Task.REGRESSION),
        ("survival:cox", Task.SURVIVAL),
    ):  # fmt: skip
        with pytest.raises(InvalidJob, match=rf"loss: expected none with {name}"):
            objective_of(name, task, loss, in_cells=True)
    with pytest.raises(InvalidJob, match="expected histogram or secureboost"):
        check_parameters("reg:squarederror", loss)
    with pytest.raises(InvalidJob, match="and no loss, or its default"):
        check_parameters("huber", Booster(loss="margin ** 2", huber_slope=2.0), "")
    with pytest.raises(InvalidJob, match="expected a loss, or its default"):
        check_parameters("reg:squarederror", Booster(hessian="1"), "")


@pytest.mark.parametrize(
    ("loss", "holds_back"),
    [
        ("(margin - label)**2", True),
        ("abs(margin - label)", True),
        ("where(label > margin, 3 * (label - margin)**2, (label - margin)**2)", True),
        ("log(1 + exp(margin)) - label * margin", False),
        ("log(1 + exp(margin)) - (0.95 * label + 0.025) * margin", False),  # smoothed labels
        ("(1 / (1 + exp(-margin)) - label)**2", False),
        ("max(0, 1 - (2 * label - 1) * margin)**2", False),
    ],
)
def test_an_error_of_the_label_under_log_odds_is_warned_of(loss: str, holds_back: bool) -> None:
    for name in ("binary:logistic", "binary:logitraw", "bce"):
        assert bool(unusual_loss(name, Booster(loss=loss))) == holds_back
    assert not unusual_loss("reg:squarederror", Booster(loss=loss))
    assert not unusual_loss("binary:logistic", Booster())
