"""The algorithm: dual coordinate ascent with a working set and a Newton finish."""
