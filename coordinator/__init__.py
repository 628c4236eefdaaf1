"""Level 3: the process that closes barriers, and the operator's command line."""
