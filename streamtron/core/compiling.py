"""Kernels compiled by two processes, on a machine that has none yet; the second runs this module.

Both write to numba's cache and load from it what the other has compiled. One begins where a fit
begins, the other where it ends; they meet in the middle without a word.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from subprocess import DEVNULL, Popen

from streamtron.core import kernels

COMMAND = [sys.executable, "-P", "-m", "streamtron.core.compiling"]
"""The second process; no module is taken from the directory it is started in."""

TRAINING = (
    kernels.squared_norms,
    kernels.shuffle,
    kernels.visit,
    kernels.visit_unlearn,
    kernels.add_scaled,
    kernels.scatter,
    kernels.margins,
    kernels.loss_along,
    kernels.scan,
    kernels.sum_squares,
    kernels.sum_bins,
)
"""What a fit with the default settings calls once it has rows, in the order of the first calls."""


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Have what a fit calls late compiled beside it, if this machine has not compiled it yet.

    The second process ends by itself, and with the block at the latest.
    """
    with ExitStack() as stack:
        if kernels.dot.compile():
            with suppress(OSError):  # it is only a help
                second = Popen(COMMAND, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
                stack.enter_context(second)
                stack.callback(second.terminate)
        yield


if __name__ == "__main__":
    for kernel in reversed(TRAINING):
        kernel.compile()
