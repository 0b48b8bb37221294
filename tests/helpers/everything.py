"""To import this is to import what commands and tasks import, and to load the kernels: a process
that is forked from one that has done so begins at once."""

import tempfile

# ruff: noqa: F401
import distributed.cli.dask_scheduler
import distributed.cli.dask_worker
import sklearn.metrics

import streamtron.cli.main
import streamtron.cluster.batch
import streamtron.cluster.parts
import streamtron.runs.certify
import streamtron.runs.change
import streamtron.runs.report_page
import streamtron.sweeps.sweep
from streamtron.data.writers.corpus import generate

with tempfile.TemporaryDirectory() as place:
    generate(f"{place}/corpus", rows=50, columns=100, seed=0, shards=1)
    streamtron.fit(f"{place}/corpus", model=f"{place}/model")
