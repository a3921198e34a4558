"""Many trees, one update for all of them."""
