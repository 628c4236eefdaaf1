"""Secure sums: masks, key agreement, secret shares, fields, noise, checked totals."""
