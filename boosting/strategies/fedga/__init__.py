"""Strategy fedga."""
