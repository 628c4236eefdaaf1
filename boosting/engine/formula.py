"""Losses that a job writes down, with exact derivatives: ``log(1 + exp(margin)) - label * margin``.

The text is no program. Python's parser makes a tree of it, of which the operations below are taken
and nothing else; no name is looked up and no code is made. A tree is evaluated on arrays, together
with its first and second derivative by the margin, by the rules of Taylor arithmetic: work and
memory grow with the length of the text, and not as derivatives that are written out would.

References
----------
Griewank and Walther, Evaluating Derivatives, 2008, chapter 13: propagation of Taylor coefficients.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import InvalidJob

Floats = NDArray[np.float64]

MOST_TEXT = 1_000
MOST_PARTS = 200
MOST_DEPTH = 64
_BLOCK_ROWS = 1 << 12
_VARIABLES = ("margin", "label")
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_ARGUMENTS = {"abs": 1, "exp": 1, "log": 1, "sqrt": 1, "where": 3, "min": 0, "max": 0}
"""How many a function takes; 0 for two or more."""
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub, ast.UAdd)
EXPECTED = (
    "expected a formula of margin, label, numbers, + - * / **, comparisons in where, "
    f"{', '.join(_ARGUMENTS)}"
)


class _Jet(NamedTuple):
    """A value, and its first and second derivative by the margin; None for those that are zero."""

    value: Any
    first: Any = None
    second: Any = None


@dataclass(frozen=True, slots=True)
class Formula:
    """A loss of a row, and what takes the place of its second derivative if anything does."""

    loss: str
    hessian: str = ""

    def check(self) -> None:
        """Raise :class:`InvalidJob` for text that is no formula, or has no slope or no curvature.

        The latter are looked for at margins and labels of many sizes, and not at rows.
        """
        grid = np.concatenate([-(10.0 ** np.arange(6, -4, -1)), [0.0], 10.0 ** np.arange(-3, 7)])
        points = [one.ravel() for one in np.meshgrid(grid, grid)]
        g, h = self.gradients(*points)
        if not g.any():
            raise InvalidJob(
                f"[booster] loss: expected one that changes with margin, received {self.loss[:80]}"
            )
        if not h.any():
            key, given = ("hessian", self.hessian) if self.hessian else ("loss", self.loss)
            raise InvalidJob(
                f"[booster] {key}: expected a second derivative above 0, received {given[:80]}; "
                "set hessian = '1' for steps of the first alone"
            )

    def values(self, margins: Floats, labels: Floats) -> Floats:
        """Return the loss of each row, shape (n_samples,)."""
        with np.errstate(all="ignore"):
            found = _jet(_parsed("loss", self.loss), margins, labels).value
        return np.broadcast_to(np.asarray(found, np.float64), margins.shape)

    def gradients(self, margins: Floats, labels: Floats) -> tuple[Floats, Floats]:
        """Return the first and second derivative by the margin of each row.

        A row of which one is no finite float32 has zeros, so that nobody is told of it by a
        refusal. A second derivative below zero is zero.

        Parameters
        ----------
        margins, labels : ndarray of shape (n_samples,), float64
        """
        loss = _parsed("loss", self.loss)
        hessian = _parsed("hessian", self.hessian) if self.hessian else None
        out = np.zeros((2, len(margins)))
        for first in range(0, len(margins), _BLOCK_ROWS):
            rows = slice(first, first + _BLOCK_ROWS)
            with np.errstate(all="ignore"):
                _, g, h = _jet(loss, margins[rows], labels[rows])
                if hessian is not None:
                    h = _jet(hessian, margins[rows], labels[rows]).value
                for into, found in zip(out[:, rows], (g, h), strict=True):
                    into[:] = 0.0 if found is None else found
                held = np.isfinite(out[:, rows].astype(np.float32)).all(axis=0)
            out[:, rows] = np.where(held, out[:, rows], 0.0)
            np.maximum(out[1, rows], 0.0, out=out[1, rows])
        return out[0], out[1]


@lru_cache(64)
def _parsed(key: str, text: str) -> ast.expr:
    """Return the tree of a formula, in which there are known parts alone."""
    refused = f"[booster] {key}: {EXPECTED}; received {text[:80]!r}"
    if len(text) > MOST_TEXT:
        raise InvalidJob(
            f"[booster] {key}: expected at most {MOST_TEXT} characters, received {len(text)}"
        )
    if "#" in text or not str.isascii(text):  # neither is a part of a formula, and misleads
        raise InvalidJob(refused)
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(str.strip(text), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidJob(refused) from None
    pending, parts = [(tree, 1)], 0
    while pending:
        node, depth = pending.pop()
        parts += 1
        if parts > MOST_PARTS or depth > MOST_DEPTH:
            raise InvalidJob(
                f"[booster] {key}: expected {MOST_PARTS} parts and {MOST_DEPTH} levels at most, "
                "received more"
            )
        inner = _inner(node)
        if inner is None:
            raise InvalidJob(refused)
        pending += [(one, depth + 1) for one in inner]
    return tree


def _inner(node: ast.AST) -> list[ast.expr] | None:
    """Return the parts of a node; None where it is none of a formula's."""
    match node:
        case ast.Constant(value=float() | int() as value) if not isinstance(value, bool):
            return [] if -1e300 < value < 1e300 else None
        case ast.Name(id=name) if name in _VARIABLES:
            return []
        case ast.UnaryOp(op=op, operand=of) if isinstance(op, _OPERATORS):
            return [of]
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            named = any(isinstance(one, ast.Name) for one in ast.walk(right))
            return None if named else [left, right]
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            return [left, right]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _ARGUMENTS:
            if len(args) != _ARGUMENTS[name] and (_ARGUMENTS[name] or len(args) < 2):
                return None
            if name != "where":
                return args
            match args[0]:
                case ast.Compare(left=left, ops=[asked], comparators=[right]) if (
                    type(asked) in _COMPARISONS
                ):
                    return [left, right, *args[1:]]
    return None


def _jet(node: ast.expr, margins: Floats, labels: Floats) -> _Jet:
    """Return the value and derivatives of a part."""

    def of(part: ast.expr) -> _Jet:
        return _jet(part, margins, labels)

    match node:
        case ast.Constant(value=value):
            return _Jet(np.float64(value))  # type: ignore[arg-type]
        case ast.Name(id=name):
            return _Jet(margins, np.float64(1.0)) if name == "margin" else _Jet(labels)
        case ast.UnaryOp(op=op, operand=operand):
            return of(operand) if isinstance(op, ast.UAdd) else _negative(of(operand))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _sum(of(left), of(right))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _sum(of(left), _negative(of(right)))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _product(of(left), of(right))
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _quotient(of(left), of(right))
        case ast.BinOp(left=left, right=right):
            return _power(of(left), float(of(right).value))
        case ast.Call(func=ast.Name(id="where"), args=[ast.Compare() as asked, yes, no]):
            compare = _COMPARISONS[type(asked.ops[0])]
            true = compare(of(asked.left).value, of(asked.comparators[0]).value)
            return _chosen(true, of(yes), of(no))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args):
            sign = 1.0 if name == "max" else -1.0
            return reduce(lambda a, b: _extreme(sign, a, b), map(of, args))
        case ast.Call(func=ast.Name(id=name), args=[argument]):
            x = of(argument)
            v = x.value
            if name == "exp":
                return _chain(x, e := np.exp(v), lambda: (e, e))
            if name == "log":
                return _chain(x, np.log(v), lambda: (1.0 / v, -1.0 / (v * v)))
            if name == "abs":
                return _chain(x, np.abs(v), lambda: (np.sign(v), None))
            return _power(x, 0.5)
    raise AssertionError("a part that was let through")


def _chain(x: _Jet, value: Any, slopes: Callable[[], tuple[Any, Any]]) -> _Jet:
    """Return f(x), by its first two derivatives at x."""
    if x.first is None:
        return _Jet(value)
    first, second = slopes()
    bent = None if second is None else second * (x.first * x.first)
    return _Jet(value, first * x.first, _plus(_times(first, x.second), bent))


def _sum(a: _Jet, b: _Jet) -> _Jet:
    return _Jet(a.value + b.value, _plus(a.first, b.first), _plus(a.second, b.second))


def _negative(a: _Jet) -> _Jet:
    return _Jet(*(None if one is None else -one for one in a))


def _product(a: _Jet, b: _Jet) -> _Jet:
    first = _plus(_times(a.first, b.value), _times(a.value, b.first))
    both = _times(a.first, b.first)
    second = _plus(_times(a.second, b.value), _times(a.value, b.second))
    return _Jet(a.value * b.value, first, _plus(second, _plus(both, both)))


def _quotient(a: _Jet, b: _Jet) -> _Jet:
    """Return q = a / b, with q' = (a' - q b') / b and q'' = (a'' - 2 q' b' - q b'') / b."""
    value = a.value / b.value
    first = _minus(a.first, _times(value, b.first))
    first = None if first is None else first / b.value
    second = _minus(_minus(a.second, _times(value, b.second)), _times(first, b.first, 2.0))
    return _Jet(value, first, None if second is None else second / b.value)


def _power(a: _Jet, c: float) -> _Jet:
    def slopes() -> tuple[Any, Any]:
        second = c * (c - 1.0)
        return c * a.value ** (c - 1.0), second * a.value ** (c - 2.0) if second else None

    if c == 0.0:
        return _Jet(np.float64(1.0))
    return _chain(a, np.sqrt(a.value) if c == 0.5 else a.value**c, slopes)


def _extreme(sign: float, a: _Jet, b: _Jet) -> _Jet:
    """Return the larger of both, or the smaller; where they are equal, the mean of derivatives."""
    larger, equal = sign * a.value > sign * b.value, a.value == b.value
    mean = _Jet(a.value, *(_times(_plus(x, y), 0.5) for x, y in zip(a[1:], b[1:], strict=True)))
    return _chosen(equal, mean, _chosen(larger, a, b))


def _chosen(true: Any, a: _Jet, b: _Jet) -> _Jet:
    def one(x: Any, y: Any) -> Any:
        both_zero = x is None and y is None
        return (
            None if both_zero else np.where(true, 0.0 if x is None else x, 0.0 if y is None else y)
        )

    return _Jet(*map(one, a, b))


def _plus(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _minus(a: Any, b: Any) -> Any:
    return a if b is None else -b if a is None else a - b


def _times(a: Any, b: Any, c: float = 1.0) -> Any:
    return None if a is None or b is None else c * a * b
