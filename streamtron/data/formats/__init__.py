"""One module for each format, and what they share."""

import sys

from streamtron.core import is_loaded, later

_KERNELS = f"{__name__}.text_kernels"
later(_KERNELS)  # loads numba

FEW_BYTES = 1 << 18
"""Text that a process reads in Python, without numba, which takes as long to load."""

_left = FEW_BYTES


def is_few(size: int) -> bool:
    """Tell whether so many bytes more are read in Python: they are few, and numba is not loaded."""
    global _left
    _left -= size
    return _left >= 0 and not is_loaded(sys.modules[_KERNELS])
