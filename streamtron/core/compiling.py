"""Compile kernels in a second process, which runs this module, beside the first fit on a machine.

Both processes write to numba's cache and load from it what the other has compiled. The fit compiles
kernels in the order of their first calls, the second process in reverse order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from subprocess import DEVNULL, Popen

from streamtron.core import kernels

COMMAND = [sys.executable, "-P", "-m", "streamtron.core.compiling"]
"""The second process; ``-P`` keeps the current directory out of its module path."""

TRAINING = (
    kernels.squared_norms,
    kernels.shuffle,
    kernels.visit,
    kernels.visit_ascent,
    kernels.add_scaled,
    kernels.scatter,
    kernels.margins,
    kernels.loss_along,
    kernels.scan,
    kernels.sum_squares,
    kernels.sum_bins,
)
"""Kernels of a fit with default settings, in the order of their first calls."""


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Compile kernels beside a fit, in reverse order, if this machine has not compiled them yet.

    The second process ends with the block at the latest.
    """
    with ExitStack() as stack:
        if kernels.dot.compile():
            with suppress(OSError):  # only the time is lost
                second = Popen(COMMAND, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
                stack.enter_context(second)
                stack.callback(second.terminate)
        yield


if __name__ == "__main__":
    for kernel in reversed(TRAINING):
        kernel.compile()
