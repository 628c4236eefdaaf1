"""Secure sums: steps, the two halves, their records and costs."""
