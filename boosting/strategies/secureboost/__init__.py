"""Strategy secureboost."""
