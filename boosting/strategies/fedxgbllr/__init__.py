"""Strategy fedxgbllr."""
