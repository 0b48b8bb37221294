"""One module for each format, and what they share."""

from streamtron.core import later

later(f"{__name__}.text_kernels")  # loads numba
