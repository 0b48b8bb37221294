"""Write new shards, predictions, tables and synthetic corpora."""
