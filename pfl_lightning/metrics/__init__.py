"""From sums to metrics, records and totals."""
