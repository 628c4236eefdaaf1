"""``{reveals}`` puts a strategy's own statement of what each party learns into its page."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from hedgerow.boosting.ports import strategy_of


class Reveals(SphinxDirective):
    """The statement that `hedgerow plan` prints and the ledger and the report quote."""

    required_arguments = 1

    def run(self) -> list[nodes.GrowingNode]:
        """Return the statement as a quotation, a paragraph for each of its own."""
        told = str(strategy_of(self.arguments[0]).reveals)
        # A line break inside a sentence is none.
        parts = [" ".join(part.split()) for part in re.split(r"(?<=[.:;])\n", told)]
        return [nodes.block_quote("", *(nodes.paragraph("", p) for p in parts if p))]


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("reveals", Reveals)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
