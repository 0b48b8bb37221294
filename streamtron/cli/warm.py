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
    known: list[Any] = [*vars(kernels).values(), *vars(text_kernels).values()]
    compiled = [loop.compile() for loop in known if isinstance(loop, kernels.Kernel)]
    seconds = time.monotonic() - start
    click.echo(f"{sum(compiled)} of {len(compiled)} loops compiled, in {seconds:.1f} s")
