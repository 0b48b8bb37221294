"""One module for each format, and what they share."""
