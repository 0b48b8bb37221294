"""One run on disk: a module for each command, and what a run directory holds."""
