"""The command ``convert``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamtron.cli import options
from streamtron.cli.common import executor_of, say_written
from streamtron.core.errors import SettingsError

if TYPE_CHECKING:
    from streamtron.data.formats.text_recipe import TextRecipe


@click.command(short_help="Convert shards to another format.")
@options.shards_argument
@click.argument("destination", type=click.Path(file_okay=False))
@click.option("--format", "format_", type=click.Choice(["libsvm", "parquet"]), default="parquet",
              show_default=True, help="Format of the new shards.")  # fmt: skip
@options.text_options
@click.option("--rows-per-shard", type=options.whole_number(1), default=1 << 17, show_default=True,
              help="Rows of each new shard but the last.")  # fmt: skip
@click.option("--keep-names", is_flag=True,
              help="Keep the names of columns (words, hashed names) beside the shards, for explain "
              "and report; reads once more.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the shards of an earlier conversion.")
@options.setting_options(*options.READING[:-2])
@options.distributed_options
@options.verbose_option
def convert(
    shards: tuple[str, ...], destination: str, format_: str, rows_per_shard: int, keep_names: bool,
    overwrite: bool, tfidf: bool, **given: Any,
) -> None:  # fmt: skip
    """Write SHARDS to the directory DESTINATION in another format or with other shard sizes.

    With --text, SHARDS hold documents, which become rows as by scikit-learn's HashingVectorizer. A
    model of these rows reads documents itself.
    """
    from streamtron.runs.convert import convert as convert_shards

    recipe = _recipe(given)
    settings = options.settings_of(options.split(given)[0])
    with executor_of(**given) as executor:
        written = convert_shards(
            shards, destination, to=format_, settings=settings,  # type: ignore[arg-type]
            text=recipe, tfidf=tfidf, rows_per_shard=rows_per_shard, overwrite=overwrite,
            keep_names=keep_names, executor=executor,
        )  # fmt: skip
    say_written(written, destination)


def _recipe(given: dict[str, Any]) -> TextRecipe | None:
    """Take the options of a text out of those given, and return their recipe if there is a text."""
    named = {name: given.pop(name) for name in options.TEXT}
    named = {name: value for name, value in named.items() if value is not None}
    if "text" not in named:
        if named:
            other = options.option_name(next(iter(named)))
            raise SettingsError(f"{other} belongs to documents: name their column by --text.")
        return None
    from streamtron.data.formats.text_recipe import TextRecipe

    if named.get("norm") == "none":
        named["norm"] = None
    for name, renamed in (("ngrams", "ngram_range"), ("hash_bits", "hash_bits")):
        value = named.pop(name, None) if name in named else given.pop(name, None)
        if value is not None:
            named[renamed] = value
    return TextRecipe(**named)
