"""What an operator runs; none of it needs a coordinator beside it."""
