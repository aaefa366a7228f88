"""Keys: which are legal, their stable hash, and the partitioners that make slots of them."""
