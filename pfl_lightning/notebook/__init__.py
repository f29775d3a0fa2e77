"""Training from Python and notebooks with one call."""
