"""The command ``fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from streamtron.cli import options
from streamtron.cli.common import check_files, report_fit, training
from streamtron.cli.evaluate import metric_lines, warn_known
from streamtron.cli.terminal import say
from streamtron.core.errors import SettingsError
from streamtron.core.text import Lines, share_of_rows

if TYPE_CHECKING:
    from streamtron.core.config import Settings
    from streamtron.model.linear_model import LinearModel
    from streamtron.runs.report import Outcome


@options.command(options.Grouped)
@options.shards_argument
@options.written("--model", required=True, help="File for the model.")
@options.report_option
@options.written("--witness", help="File for the witness: certify reads once with it.")
@options.several("--valid", metavar="SHARDS|20%", help="Rows held out to measure on.")
@options.several(
    "--calibrate", metavar="SHARDS|10%", help="Rows held out to make probabilities from."
)
@options.calibration_option
@options.time_limit_option
@options.log_option
@options.config_option
@options.run_options
@options.setting_options()
@options.machine_options
@options.cluster_options
def fit(
    shards: tuple[str, ...], valid: tuple[str, ...], calibrate: tuple[str, ...], **given: Any
) -> int:
    """Train on SHARDS (files, directories, globs) and write a certified model.

    Minimises ½‖w‖² + C Σ max(0, 1 − margin)², LIBLINEAR's default problem, or that of another
    --loss, until the relative duality gap is proven to be within --tol. --no-FLAG undoes a flag
    of a settings file.
    """
    names, machine = options.split(given)
    settings = options.settings_of(names, given["config"])
    measured = _rows(valid, shards)
    start = 0.0 if measured.files else measured.share[1]
    calibrated = _rows(calibrate, shards, start if valid else 0.0)
    settings = _holding_out(settings, measured, calibrated)
    if calibrate and settings.regression:
        raise SettingsError("--calibrate makes probabilities, and numbers have none: leave it out.")
    from streamtron.data import find_shards
    from streamtron.runs.fit import run

    model = given["model"]
    files: Any = {name: given[name] for name in ("model", "report", "witness")}
    paths = [*shards, *calibrated.files, *measured.files]
    read = [*paths, given["config"], *settings.files, given["scheduler"]]
    check_files({**files, "log": given["log"]}, read, machine)
    for rows in filter(None, (calibrated.files, measured.files)):
        find_shards(rows)  # before hours of work
    with training(given, machine) as how:
        how |= {name: given[name] for name in ("resume", "overwrite", "time_limit")}
        outcome = run(shards, settings, **files, **how)
    code = report_fit(outcome, model, machine, _notes(outcome, settings))
    fitted = tuple(shard.path for shard in outcome.manifest.shards)  # without those left out
    held_out = measured.among(fitted), calibrated.among(fitted)
    _use(*held_out, outcome.model, given["calibration"], model)
    return code


class _Rows(NamedTuple):
    """Rows held out: those of ``paths`` in a ``share``, see ``evaluate``; none without a path."""

    paths: tuple[str, ...]
    share: tuple[float, float] = (0.0, 1.0)

    @property
    def files(self) -> tuple[str, ...]:
        """The paths, where they are no others than those of the fit."""
        return self.paths if self.share == (0.0, 1.0) else ()

    def among(self, shards: tuple[str, ...]) -> _Rows:
        """Return the share as one of these shards."""
        return self if self.files or not self.paths else self._replace(paths=shards)

    def __str__(self) -> str:
        size = self.share[1] - self.share[0]
        return "rows held out" + f" ({size:.4g} of all, by shard name and row)" * (size < 1.0)


def _rows(given: tuple[str, ...], shards: tuple[str, ...], start: float = 0.0) -> _Rows:
    """Return the rows that ``--valid`` or ``--calibrate`` names; a share begins at ``start``."""
    size = share_of_rows(given)
    return _Rows(given) if size is None else _Rows(shards, (start, round(start + size, 9)))


def _holding_out(settings: Settings, *rows_held_out: _Rows) -> Settings:
    """Return the settings with the rows held out that are a share."""
    from streamtron.runs.inputs import holding_out

    shares = (rows.share[1] for rows in rows_held_out if not rows.files and rows.paths)
    share = max(shares, default=settings.held_out)
    if share >= 1.0:
        raise SettingsError("--valid and --calibrate hold out all rows: give smaller shares.")
    return holding_out(settings, share)


def _use(valid: _Rows, calibrate: _Rows, model: LinearModel, method: Any, path: str) -> None:
    """Calibrate a model and write it anew, then print how it does on the rows for ``--valid``."""
    if calibrate.paths:
        from streamtron.runs.calibrate import calibrate as calibrate_model
        from streamtron.runs.finished_run import editing_model

        with editing_model(path) as edited:
            how = {"method": method, "share": calibrate.share}
            model = calibrate_model(edited, calibrate.paths, **how)
            model.save(path)
        say(["", f"calibrated on {(model.calibration or {})['rows']:,} {calibrate}"])
    if valid.paths:
        from streamtron.runs.evaluate import evaluate

        if valid.files:
            warn_known(model, path, valid.files)
        metrics = evaluate(model, valid.paths, share=valid.share).to_dict()
        say(["", f"on {valid}:", *metric_lines(metrics, model.classes)])


def _notes(outcome: Outcome, settings: Settings) -> Lines:
    """Yield what the data decided, where the settings did not."""
    if outcome.report["settings"]["multiclass"] and not settings.multiclass:
        yield (
            f"{len(outcome.model.classes):,} classes: each is trained against the rest, as with "
            "--multiclass"
        )
        yield ""
