"""The code with one rule taken out: a function whose source is changed in one place."""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any


class Change:
    """Places of one function's source.

    ``where`` is ``module:function`` under ``hedgerow``. Of the texts each second one stands in
    place of the one before, which has to be in the source once.
    """

    def __init__(self, where: str, *texts: str) -> None:
        self.where, self._texts = where, texts

    @property
    def owner(self) -> tuple[Any, str]:
        """What has the function, and its name there."""
        module, _, path = self.where.partition(":")
        *above, name = path.split(".")
        owner: Any = importlib.import_module(f"hedgerow.{module}")
        for part in above:
            owner = getattr(owner, part)
        return owner, name

    def function(self) -> Callable[..., Any]:
        """Return the changed function."""
        owner, name = self.owner
        own = getattr(owner, name)
        source = textwrap.dedent(inspect.getsource(own))
        for old, new in zip(self._texts[::2], self._texts[1::2], strict=True):
            assert source.count(old) == 1, f"{self.where} does not say {old!r} any more"
            source = source.replace(old, new)
        space = dict(vars(sys.modules[own.__module__]))
        code = "from __future__ import annotations\n" + source
        exec(compile(code, own.__module__, "exec", dont_inherit=True), space)
        changed: Callable[..., Any] = space[name]
        return changed
