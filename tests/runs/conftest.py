"""Corpora that several test modules of this folder use."""

from pathlib import Path

import pytest

from streamtron import generate
from tests.helpers.user_rows import Corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Ten shards of 300 rows."""
    directory = tmp_path_factory.mktemp("corpus")
    generate(str(directory), rows=3000, columns=400, seed=3, shards=10)
    return sorted(directory.glob("*.svm"))


@pytest.fixture(scope="module")
def user_rows(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Four shards of 200 rows, each row a user's."""
    return Corpus(tmp_path_factory.mktemp("rows"))
