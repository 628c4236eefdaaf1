"""Level 0: numbers and bytes of the cryptography; no network, no trees."""
