"""Plain building blocks that know nothing of federated learning."""
