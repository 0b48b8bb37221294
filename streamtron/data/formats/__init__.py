"""One module for each format, and what they share."""

from streamtron.core import later

for _name in ("text", "word"):
    later(f"{__name__}.{_name}_kernels")  # loads numba
