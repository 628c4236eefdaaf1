"""``obj``: gradients that each site's script computes of its own rows."""

from __future__ import annotations

import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.metrics import link
from hedgerow.xgboost.data import with_values

try:
    from xgboost.objective import Objective, TreeObjective
except ImportError:  # before XGBoost 3.2
    Objective = TreeObjective = ()
_PLAIN = (str, int, float, bool, bytes, type(None), np.generic)


class SiteGradients:
    """A script's ``obj`` over the rows of a matrix, as a silo's half calls it.

    Attributes
    ----------
    errors : list
        What the function raised, which the other sites are not told.
    """

    def __init__(
        self, obj: Any, matrix: xgboost.DMatrix, errors: list[BaseException] | None = None
    ) -> None:
        self._obj, self._matrix = obj, matrix
        self.errors = [] if errors is None else errors

    @property
    def name(self) -> str:
        """The function's name and a digest of its text, by which all sites' are compared."""
        return named(self._obj)

    def __call__(self, round_: int, margins: NDArray[np.float32]) -> tuple[Any, Any]:
        """Return g and h, as XGBoost asks the function for them."""
        predt = margins[:, 0] if margins.shape[1] == 1 else margins
        own = (round_,) if isinstance(self._obj, Objective) else ()
        try:
            g, h = self._obj(*own, predt, self._matrix)
            if isinstance(self._obj, TreeObjective):
                reduced = self._obj.split_grad(round_, g, h)
                if not all(map(np.array_equal, reduced or (), (g, h))):
                    raise InvalidJob(
                        "obj: split_grad: expected the gradients of leaves, for trees and leaves "
                        "are by the same sums here, received others"
                    )
        except BaseException as error:
            self.errors.append(error)
            raise
        return g, h

    def of(self, rows: NDArray[np.intp]) -> SiteGradients:
        """Return the same over some of the rows."""
        return SiteGradients(self._obj, with_values(self._matrix).slice(rows), self.errors)


class SiteMetric:
    """A script's ``custom_metric`` over the rows of a matrix.

    Attributes
    ----------
    told : str
        What the function calls itself, once it was called.
    """

    def __init__(
        self, function: Any, matrix: xgboost.DMatrix, link: str, errors: list[BaseException]
    ) -> None:
        self._function, self._matrix, self._link, self._errors = function, matrix, link, errors
        self.told = ""

    def __call__(self, margins: NDArray[np.float64]) -> float:
        """Return the score; the function is given predictions, or margins beside an ``obj``."""
        try:
            shaped = margins.reshape(max(self._matrix.num_row(), 1), -1)
            found = _predicted(self._link, shaped).astype(np.float32)
            told = self._function(found[:, 0] if found.shape[1] == 1 else found, self._matrix)
            if not (isinstance(told, tuple) and len(told) == 2 and isinstance(told[0], str)):
                raise InvalidJob("custom_metric: expected a name and a number, received others")
            self.told, value = told
            return float(value)
        except BaseException as error:
            self._errors.append(error)
            raise


def _predicted(objective: str, margins: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what XGBoost predicts; margins of shape (n_samples, n_outputs) where there is none."""
    if objective == "multi:softmax":
        return np.asarray(margins.argmax(axis=1)[:, None], np.float64)
    own = objective in ("", "binary:logitraw")
    return margins if own else np.asarray(link(objective, margins))


def named(function: Callable[..., Any]) -> str:
    """Return a function's name and a digest of its text and of plain values that it closes over.

    Sites with the same text have the same name, with any version of Python; a function typed
    at a prompt has no text, and is compared by its code, which is that version's. Of what a
    function calls names are compared alone.
    """
    own = getattr(function, "__name__", type(function).__name__)
    return f"{own} {hashlib.sha256(_text(function, set()).encode()).hexdigest()[:16]}"


def _text(of: Any, seen: set[int]) -> str:
    """Return what a function is told apart by."""
    if isinstance(of, _PLAIN):
        return repr(of)
    if isinstance(of, list | tuple | set | frozenset | dict) and len(of) <= 1000:
        pairs = of.items() if isinstance(of, dict) else enumerate(_ordered(of))
        return type(of).__name__ + "".join(f"[{k!r}]{_text(v, seen)}" for k, v in pairs)
    if id(of) in seen:
        return ""
    seen.add(id(of))
    if isinstance(of, functools.partial):
        return "partial" + _text((of.func, of.args, of.keywords), seen)
    if inspect.ismethod(of):
        return _text((of.__func__, vars(of.__self__) if hasattr(of.__self__, "__dict__") else 0),
                     seen)  # fmt: skip
    if isinstance(of, FunctionType):
        cells = [cell.cell_contents for cell in of.__closure__ or ()]
        return _source(of, of.__code__) + _text((of.__defaults__, of.__kwdefaults__, cells), seen)
    if not callable(of) or isinstance(of, type):
        return type(of).__name__
    return _source(type(of), None) + _text(vars(of) if hasattr(of, "__dict__") else 0, seen)


def _ordered(of: Any) -> Any:
    """Return the elements of a set in an order that all processes have; what is none as it is."""
    return sorted(of, key=repr) if isinstance(of, set | frozenset) else of


def _source(of: Any, code: CodeType | None) -> str:
    try:
        # Since Python 3.13 a function that exec has made seems to have the text of `python -c`.
        if code is None or code.co_filename != "<string>":
            return textwrap.dedent(inspect.getsource(of))
    except (OSError, TypeError):  # typed at a prompt, or built in
        pass
    return str(of.__qualname__) if code is None else repr(_parts(code))


def _parts(code: CodeType) -> list[Any]:
    consts = map(_ordered, code.co_consts)
    inner = [_parts(one) if isinstance(one, CodeType) else one for one in consts]
    return [code.co_code, inner, code.co_names, code.co_varnames]
