"""Pictures and tables of a run: the clients' data, the personal parameters, Learn2pFed's settings."""
