"""Parse ``--columns`` and ``--text``: what each column of a table is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, get_args

from streamtron.core.errors import SettingsError

Kind = Literal["number", "category", "date", "list", "text"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Spec(NamedTuple):
    """A column and its kind; ``hashed`` : of a category or a text, no names are kept."""

    name: str
    kind: Kind
    hashed: bool = False

    def __str__(self) -> str:
        return f"{self.name}:{self.kind}{':hash' * self.hashed}"


def parse_spec(words: str) -> Spec:
    """Parse ``NAME:KIND`` or ``NAME:KIND:hash``. SettingsError: it is none.

    Examples
    --------
    >>> parse_spec("note:text:hash")
    Spec(name='note', kind='text', hashed=True)
    """
    named = words.removesuffix(":hash")
    name, _, kind = named.rpartition(":")
    hashed = named != words
    if not name or kind not in KINDS or (hashed and kind not in ("category", "text")):
        raise SettingsError(
            f"columns: {words!r:.80}: expected NAME:KIND, where KIND is {', '.join(KINDS)}, "
            "category:hash or text:hash."
        )
    return Spec(name, kind, hashed)


def specs_of(columns: Iterable[str] | None, text: str | None) -> list[Spec]:
    """Return the columns that settings name, each once; [] where they name none."""
    specs = [*_of_text(text), *map(parse_spec, columns or ())]
    times = Counter(spec.name for spec in specs)
    if twice := [name for name in times if times[name] > 1]:
        raise SettingsError(f"columns: {twice[0]!r:.60} twice. Name each column once.")
    return specs


def _of_text(text: str | None) -> Iterator[Spec]:
    if text is not None:
        name = text.removesuffix(":hash")
        yield Spec(name, "text", name != text)
