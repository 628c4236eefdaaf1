"""The strategies, one package each; :func:`hedgerow.boosting.ports.strategy_of` finds them."""

NAMES = ("bagging", "fedxgbllr", "histogram", "fedga", "dp_tree", "secureboost", "simfl")
"""Names in job files, and of the packages here."""
