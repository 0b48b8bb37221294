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
    with contextlib.chdir(os.path.dirname(batch.path)), contextlib.redirect_stdout(io.StringIO()):
        code = main._run(list(job.words))
    return Ended(job.name, code, "")
