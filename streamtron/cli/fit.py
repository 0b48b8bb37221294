"""The command ``fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamtron.cli import options
from streamtron.cli.common import check_files, report_fit, training
from streamtron.cli.evaluate import metric_lines, warn_known
from streamtron.cli.terminal import say
from streamtron.core.config import Settings
from streamtron.core.text import Lines, share_of_rows

if TYPE_CHECKING:
    from streamtron.runs.report import Outcome


@options.command(options.Grouped)
@options.shards_argument
@options.written("--model", required=True, help="File for the model.")
@options.report_option
@options.written("--witness", help="File for the witness: certify reads once with it.")
@options.several("--valid", metavar="SHARDS|20%", help="Rows held out to measure on.")
@options.time_limit_option
@options.log_option
@options.run_options
@options.setting_options()
@options.machine_options
@options.cluster_options
def fit(shards: tuple[str, ...], valid: tuple[str, ...], **given: Any) -> int:
    """Train on SHARDS (files, directories, globs) and write a certified model.

    Minimises ½‖w‖² + C Σ max(0, 1 − margin)², LIBLINEAR's default problem, or that of another
    --loss, until the relative duality gap is proven to be within --tol. --no-FLAG undoes a flag
    of a file of --columns.
    """
    names, machine = options.split(given)
    settings = Settings.from_dict(names)
    from streamtron.data import find_shards
    from streamtron.runs.fit import run
    from streamtron.runs.inputs import holding_out

    if (share := share_of_rows(valid)) is not None:
        settings, valid = holding_out(settings, share), ()

    model = given["model"]
    files: Any = {name: given[name] for name in ("model", "report", "witness")}
    read = [*shards, *valid, *settings.files, given["scheduler"]]
    check_files({**files, "log": given["log"]}, read, machine)
    if valid:
        find_shards(valid)  # before hours of work
    with training(given, machine) as how:
        how |= {name: given[name] for name in ("resume", "overwrite", "time_limit")}
        outcome = run(shards, settings, **files, **how)
    code = report_fit(outcome, model, machine, _notes(outcome, settings))
    if valid or share:
        from streamtron.runs.evaluate import evaluate

        of_all, where = (0.0, 1.0), ""
        if share:
            valid, of_all = shards, (0.0, share)
            where = f" ({share:.4g} of all, by shard name and row)"
        else:
            warn_known(outcome.model, model, valid)
        metrics = evaluate(outcome.model, valid, share=of_all).to_dict()
        say(["", f"on rows held out{where}:", *metric_lines(metrics, outcome.model.classes)])
    return code


def _notes(outcome: Outcome, settings: Settings) -> Lines:
    """Yield what the data decided, where the settings did not."""
    if outcome.report["settings"]["multiclass"] and not settings.multiclass:
        softmax = outcome.report["settings"]["loss"] == "softmax"
        how = "they are one problem" if softmax else "each is trained against the rest"
        yield f"{len(outcome.model.classes):,} classes: {how}, as with --multiclass"
        yield ""
