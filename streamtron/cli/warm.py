"""The command ``warm``."""

from __future__ import annotations

import time
from typing import Any

import click


@click.command()
def warm() -> None:
    """Compile all loops for this machine, which else happens when each is first needed.

    They are kept beside the package, in the home directory, or in NUMBA_CACHE_DIR.
    """
    from streamtron.core import kernels
    from streamtron.data.formats import text_kernels

    start = time.monotonic()
    known = [*vars(kernels).values(), *vars(text_kernels).values()]
    loops: list[Any] = [value for value in known if isinstance(value, kernels.Kernel)]
    compiled = [loop.compile() for loop in loops]
    seconds = time.monotonic() - start
    click.echo(f"{sum(compiled)} of {len(compiled)} loops compiled, in {seconds:.1f} s")
