"""Both ends of Ray Data: `source` reads a dataset, `sink` makes one. Users reach both as ``RayDataset``."""
