"""Level 1: boosting algorithms and federation protocols; they run with no network."""
