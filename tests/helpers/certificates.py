"""Certificates of given margins."""

from __future__ import annotations

import math

from streamtron.core.certificate import Certificate


def of_margins(directional: float, margin: float, upper: float, rows: int = 10) -> Certificate:
    """The certificate of P and D that mean these margins."""
    primal = 0.5 / margin / margin if margin else math.inf
    return Certificate(directional, primal, 0.5 / upper / upper, rows, scale=1.0)
