"""The fitted model: its file, what it may hold, how others write theirs, how well it decides."""
