"""What one in-process worker costs per record and per batch. Run ``python -m bench.micro``."""
