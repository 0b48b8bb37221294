"""Jobs of a batch, executed in this process."""

from __future__ import annotations

import contextlib
import io
import os

from streamtron.cli import main
from streamtron.cluster.batch import Batch, Job
from streamtron.cluster.jobs import Ended


def in_process(batch: Batch, job: Job, _: object = None) -> Ended:
    """Execute a job without a process, for what is not about them: the real command, fast."""
    err = io.StringIO()
    with (
        contextlib.chdir(os.path.dirname(batch.path)),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(err),
    ):
        code = main._run(list(job.words))
    return Ended(job.name, code, err.getvalue().strip().rpartition("\n")[2] if code else "")
