"""Strategy histogram."""
