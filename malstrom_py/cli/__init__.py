"""The command line ``malstrom``."""
