"""Fixtures that several test modules use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of real data beside the project, or a skip that says it is absent."""
    directory = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip("real data: there is no directory ../shared/data beside the project")
    return directory
