"""Strategy bagging."""
