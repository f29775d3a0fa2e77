"""Who takes part in a round, which rank trains whom, and how a rank works through its clients."""
