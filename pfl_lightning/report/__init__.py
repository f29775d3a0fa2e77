"""Pictures and tables of a run: who has what, which parameters are personal, what Learn2pFed has learned."""
