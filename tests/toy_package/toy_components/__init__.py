"""One component of each kind, as another package adds them."""
