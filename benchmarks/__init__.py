"""Side-by-side measurements; each prints a table of what was measured."""
