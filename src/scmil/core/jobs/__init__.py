"""Long runs over many items: failure log, resuming, locks, shards, processes."""
