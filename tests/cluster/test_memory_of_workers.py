"""What workers need for the parts they hold, and how long dead ones are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamtron.cluster import client as cluster_client
from streamtron.cluster.client import Workers
from streamtron.core.config import Settings
from streamtron.core.errors import MachineError
from streamtron.core.kernels import COLUMN_MAX
from streamtron.runs.memory import check_worker, worker_memory_needed

PART = Settings(active_set=10**8)


def needed(parts: int, at_once: int, settings: Settings = PART, columns: int = 0) -> int:
    needs = worker_memory_needed(settings, parts=parts, at_once=at_once, columns=columns)
    return sum(need.size for need in needs)


def test_a_worker_is_refused_by_one_byte_with_the_sum_and_what_to_do():
    enough = needed(4, 2)
    check_worker(PART, "w", enough, parts=4, at_once=2)
    with pytest.raises(MachineError) as refused:
        check_worker(PART, "w", enough - 1, parts=4, at_once=2)
    for words in ("worker w needs", "active sets of 4 parts 400.0 MB", "fewer --workers"):
        assert words in str(refused.value)


def test_a_worker_needs_more_for_more_parts_threads_columns_and_hashed_features():
    assert needed(2, 1) < needed(3, 1) < needed(3, 2) < needed(3, 2, columns=1000)
    assert needed(1, 1) == needed(1, 8)  # it has but one part
    limit = needed(2, 1) + 10**6
    check_worker(PART, "w", limit, parts=2, at_once=1)
    with pytest.raises(MachineError, match="weights"):
        check_worker(PART.but(hash_bits=20), "w", limit, parts=2, at_once=1)


def test_columns_for_which_a_worker_has_no_room_are_refused_where_they_are_read():
    columns = check_worker(PART, "w", needed(2, 1, columns=500), parts=2, at_once=1)
    assert columns == 500
    assert check_worker(PART, "w", None, parts=2, at_once=1) == COLUMN_MAX + 1


class Fake:
    """A client and a cluster whose workers come after so many waits, if their nannies live."""

    def __init__(self, comes_after: int, nannies: list[str]) -> None:
        self.left, self.waits = comes_after, 0
        named = [SimpleNamespace(status=SimpleNamespace(name=name)) for name in nannies]
        self.workers = dict(enumerate(named))

    def nthreads(self) -> dict[str, int]:
        return {"a": 1} if self.waits >= self.left else {}

    def wait_for_workers(self, number: int, timeout: float) -> None:
        assert (number, timeout) == (1, cluster_client.RESTARTING)
        self.waits += 1
        if not self.nthreads():
            raise TimeoutError


@pytest.mark.parametrize(("after", "nannies", "waits"), [
    (3, ["running"], 3),  # it takes long, and comes
    (3, ["starting"], 3),
    (3, ["closed"], 1),  # it will not come
    (3, None, 1),  # not ours: who knows
    (10**6, ["running"], cluster_client.PATIENCE),
])  # fmt: skip
def test_a_worker_of_ours_is_waited_for_as_long_as_its_nanny_lives(after, nannies, waits):
    fake: Any = Fake(after, nannies or [])
    Workers(fake, None if nannies is None else fake, None).wait_for(1)
    assert fake.waits == waits
