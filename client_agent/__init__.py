"""Level 3: the process in a silo; it trains and dials out, nothing dials in."""
