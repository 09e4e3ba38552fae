"""From stored cells to metrics, statistics, claims and the report."""
