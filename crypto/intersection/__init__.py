"""Private set intersection of identifiers."""
