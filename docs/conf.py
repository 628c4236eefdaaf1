"""The documentation's site: Markdown by MyST, API pages from the protos; warnings are errors."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "_extensions"))

project = "Hedgerow"
author = copyright = "The Hedgerow authors"
release = version = version_of("hedgerow")
extensions = ["myst_parser", "proto_pages", "reference_pages", "reveals"]
exclude_patterns = ["_extensions"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "dollarmath"]
nitpicky = True
html_theme = "furo"
html_title = f"Hedgerow {version}"
html_show_sourcelink = False
html_search_scorer = str(Path(__file__).resolve().parent / "_extensions/scorer.js")
html_static_path = ["_static"]
html_css_files = ["tables.css"]
templates_path: list[str] = []
highlight_language = "none"
# Links to other sites are kept few and are looked at by `make linkcheck`.
linkcheck_timeout = 10
linkcheck_ignore = [r"http://127\.0\.0\.1\b"]
