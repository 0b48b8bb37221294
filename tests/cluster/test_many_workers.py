"""One model on 1 to 8 workers: the bytes of the model, and the bytes that are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamtron.cluster.connect import connect
from streamtron.cluster.parts import parts_on
from streamtron.core import kernels
from streamtron.core.config import Machine, Settings
from streamtron.data.writers.corpus import generate
from streamtron.runs.fit import run as fit

COLUMNS = 20_000


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("active_set", [10**9, 600_000])
def test_up_to_eight_workers_find_one_model_and_send_a_vector_or_two_a_round_each(
    active_set: int, tmp_path: Path
) -> None:
    generate(str(tmp_path / "train"), rows=3000, columns=COLUMNS, seed=1, shards=16)
    settings = Settings(parts=16, tol=0.02, active_set=active_set, max_epochs=6)

    def trained(name: str, **how: Any) -> dict[str, Any]:
        machine = Machine(cache_dir=str(tmp_path / "cache"))
        model = tmp_path / name
        return fit([tmp_path / "train"], settings, model=model, machine=machine, **how).report

    trained("alone")
    for number in (1, 2, 4, 8):
        with connect(number) as workers:
            report = trained(f"{number}", open_parts=parts_on(workers))
        assert (tmp_path / f"{number}").read_bytes() == (tmp_path / "alone").read_bytes(), number
        steps = report["steps"]  # where rows do not fit, readings visit them: all but the last
        scans = sum(steps.get(name, {"rounds": 0})["rounds"] for name in ("scan", "end_reading"))
        bins = 8 * kernels.BINS * kernels.BIN_SUMS * scans
        assert len(report["workers"]) == number
        for sent in report["workers"].values():
            assert sent["bytes_to"] <= 2.2 * 8 * COLUMNS * report["rounds"]
            assert sent["bytes_from"] - bins <= 2.2 * 8 * COLUMNS * report["rounds"]
