"""Strategy dp_tree."""
