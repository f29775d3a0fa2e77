"""Communication between ranks: collectives and exact means."""
