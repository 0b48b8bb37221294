"""New shards, predictions, tables and synthetic corpora."""
