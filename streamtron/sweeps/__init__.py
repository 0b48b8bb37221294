"""Many settings on the same shards."""
