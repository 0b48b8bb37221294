"""Dask: workers, sweeps on them, and batches of commands."""
