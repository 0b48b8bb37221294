"""The flat copy of a shard that later readings use."""
