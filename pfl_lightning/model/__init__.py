"""One client's model: a flat vector, its layout, masks, and how it trains and is tested."""
