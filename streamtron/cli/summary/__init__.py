"""Format the results of commands as aligned text."""
