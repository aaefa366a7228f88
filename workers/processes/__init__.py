"""The runtime that runs workers in processes of this machine, without Ray."""
