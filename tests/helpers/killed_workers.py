"""Workers that are killed amid a sweep."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streamtron.cluster.sweep import fit_on_worker
from streamtron.runs import directory as runs
from streamtron.sweeps.sweep import Task


class Dying:
    """``fit_on_worker`` on a worker that kills itself once, right behind a checkpoint after so many
    chunks of a reading, and notes from where a task goes on."""

    def __init__(self, marks: str, at: tuple[int, int], shared: bool = True) -> None:
        self.marks, self.at, self.shared = Path(marks), at, shared
        self.__name__ = "dying"

    def __call__(self, task: Task, *shared: Any) -> Any:
        real_save, real_load = runs.Run.save, runs.Run.load

        def save(run: runs.Run, checkpoint: runs.Checkpoint) -> None:
            if (self.marks / "died").exists():
                return  # later ones take long and are not needed
            real_save(run, checkpoint)
            if _where(checkpoint) == self.at:
                with suppress(FileExistsError):  # of two that come here at once, one dies
                    (self.marks / "died").touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)

        def load(run: runs.Run) -> runs.Checkpoint | None:
            found = real_load(run)
            if found is not None:
                (self.marks / f"resumed-{run.path.name}").write_text("{} {}".format(*_where(found)))
            return found

        if not self.shared and (self.marks / "died").exists():
            task = task._replace(run_dir=f"{task.run_dir}-elsewhere/run")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs.Run, "save", save)
            patch.setattr(runs.Run, "load", load)
            return fit_on_worker(task, *shared)


def _where(checkpoint: runs.Checkpoint) -> tuple[int, int]:
    return checkpoint.state.reading, checkpoint.state.chunks


class Cut(BaseException):
    """As the death of a process would."""
