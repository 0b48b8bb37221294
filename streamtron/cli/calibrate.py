"""The command ``calibrate``."""

from __future__ import annotations

from typing import Any

import click

from streamtron.cli import options
from streamtron.cli.common import check_files, executor_of
from streamtron.cli.terminal import complain
from streamtron.core.text import some


@options.command()
@click.argument("model", type=click.Path())
@options.shards_argument
@options.calibration_option
@options.distributed_options
def calibrate(model: str, shards: tuple[str, ...], calibration: Any, **where: Any) -> None:
    """Fit probabilities to the decisions of MODEL on SHARDS, held out of its training, and write
    the model anew with them, without training again."""
    from streamtron.runs.calibrate import calibrate as calibrate_model
    from streamtron.runs.evaluate import trained_on
    from streamtron.runs.finished_run import editing_model, run_directory

    check_files({"model": model}, [*shards, where["scheduler"]])
    with editing_model(model) as edited, executor_of(**where) as executor:
        calibrated = calibrate_model(edited, shards, method=calibration, executor=executor)
        calibrated.save(model)
    click.echo(f"{model}: calibrated on {(calibrated.calibration or {})['rows']:,} rows")
    if names := [shard.name for shard in trained_on(run_directory(model), shards)]:
        complain(
            f"Warning: the model was fitted on rows of {some(names, form=str)}, whose "
            "decisions are larger than others. Calibrate it on rows held out."
        )
