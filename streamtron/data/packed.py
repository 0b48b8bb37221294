"""Keep a transformer of scikit-learn as bytes of skops, which hold no pickle, and load it with the
types of scikit-learn and of this package alone."""

from __future__ import annotations

import copy
import inspect
import io
import json
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np

from streamtron.core.errors import DataError, SettingsError
from streamtron.core.files import reading_from
from streamtron.core.limits import available_memory
from streamtron.core.text import some

_SMALL = 1 << 16
"""Bytes that any transformer may take when it is unpacked."""


def pack(estimator: Any) -> bytes:
    """Return a transformer as bytes of skops, which equal transformers have alike. SettingsError:
    a type that is not of scikit-learn or this package."""
    from skops.io import dumps

    packed = copy.deepcopy(estimator)
    for owner in estimators_in(packed):
        _shrink(owner)
    try:
        plain = _canonical(dumps(packed))
    except Exception as error:  # of a type that skops does not know, which may raise anything
        raise SettingsError(f"transformer: skops cannot write it ({error}).") from error
    if foreign := _foreign(plain):
        raise SettingsError(
            f"transformer: a model file holds types of scikit-learn alone, and this one has "
            f"{some(foreign)}. Do that step before, or with a transformer of scikit-learn."
        )
    return plain


@lru_cache(maxsize=4)
def loaded(packed: bytes) -> Any:
    """Load a transformer; DataError: it is none, or has types of other packages."""
    import skops.io as skops

    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > max(_SMALL, available_memory() // 4):
            raise ValueError(f"{size:,} bytes, more than memory allows")
        if foreign := _foreign(packed):
            raise DataError(
                f"the transformer has types that are not of scikit-learn: {some(foreign)}. Such a "
                "file could run code, and is not loaded."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator = skops.loads(packed, trusted=skops.get_untrusted_types(data=packed))
        for owner in estimators_in(estimator):
            _expand(owner)
        if not hasattr(estimator, "transform"):
            raise TypeError(f"a {type(estimator).__name__}, which has no transform")
    except DataError:
        raise
    except Exception as error:  # what a stranger's bytes raise in skops may be anything
        raise DataError(f"the transformer is damaged ({error!s:.200}). Fit again.") from error
    return estimator


def load_transformer(path: str) -> Any:
    """Load a transformer from a file of skops, fitted or not."""
    with reading_from(path), open(path, "rb") as file:
        packed = file.read()
    try:
        return loaded(packed)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _foreign(packed: bytes) -> list[str]:
    """Return the types of other packages in bytes of skops, by name."""
    from skops.io import get_untrusted_types

    return [name for name in get_untrusted_types(data=packed) if not _is_ours(name)]


_PLAIN = {"numpy.dtype", "numpy.asarray", "builtins.type"}


def _is_ours(name: str) -> bool:
    """Return whether a name is that of a class of scikit-learn, or of a function that scores
    features, where it is defined; or of our transformers."""
    if name in _PLAIN:
        return True
    module, _, attribute = name.rpartition(".")
    package = module.partition(".")[0]
    if package == "streamtron":
        return module == "streamtron.data.transformers" and attribute in (
            "DateFeatures",
            "TagFeatures",
        )
    if package != "sklearn":
        return False
    try:
        member = getattr(import_module(module), attribute)
    except (ImportError, AttributeError):
        return False
    home = getattr(member, "__module__", "")
    is_score = inspect.isfunction(member) and home.startswith("sklearn.feature_selection.")
    return home == module and (is_score or inspect.isclass(member))


def estimators_in(value: Any) -> Iterator[Any]:
    """Yield every estimator within a value."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from estimators_in(item)
    elif isinstance(value, dict):
        yield from estimators_in(
            [x for x in value.values() if not isinstance(x, int | float | str)]
        )
    elif hasattr(value, "get_params") and not isinstance(value, type):
        yield value
        yield from estimators_in([*vars(value).values()])


def _shrink(owner: Any) -> None:
    """Write vocabularies and categories as JSON: skops takes 400 bytes a word."""
    known = vars(owner)
    known.pop("_stop_words_id", None)  # an address in memory, which is found again
    vocabulary = known.get("vocabulary_")
    if isinstance(vocabulary, Mapping):
        words = sorted(vocabulary, key=vocabulary.__getitem__)
        if [int(vocabulary[word]) for word in words] == [*range(len(words))]:
            owner.vocabulary_ = json.dumps(words)
    if isinstance(categories := known.get("categories_"), list):
        owner.categories_ = [_as_json(x) for x in categories]


def _as_json(categories: Any) -> Any:
    plain = isinstance(categories, np.ndarray) and categories.dtype == object
    if plain and all(x is None or isinstance(x, str | float) for x in categories):
        return json.dumps(categories.tolist())
    return categories


def _expand(owner: Any) -> None:
    """Undo ``_shrink``."""
    known = vars(owner)
    if isinstance(known.get("vocabulary_"), str):
        owner.vocabulary_ = {word: k for k, word in enumerate(json.loads(owner.vocabulary_))}
    if isinstance(categories := known.get("categories_"), list):
        owner.categories_ = [
            np.array(json.loads(x), dtype=object) if isinstance(x, str) else x for x in categories
        ]


_IDS = re.compile(rb'(?<!\\)"(__id__|file)": "?(\d+)')


def _canonical(packed: bytes) -> bytes:
    """Return bytes of skops without times, and with 0, 1, … in place of addresses in memory."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    counter, files = count(), dict[bytes, int]()

    def numbered(match: re.Match[bytes]) -> bytes:
        is_file = match[1] == b"file"
        # without sharing: which equal constants are one object differs between processes
        place = files.setdefault(match[2], len(files)) if is_file else next(counter)
        return match[0].replace(match[2], str(place).encode())

    schema = _IDS.sub(numbered, members.pop("schema.json"))
    named = {}
    for name, content in members.items():
        number, dot, kind = name.partition(".")
        named[(files.get(number.encode(), -1), f".{kind}" if dot else "")] = content
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("schema.json"), schema, zipfile.ZIP_DEFLATED)
        for (place, kind), content in sorted(named.items()):
            info = zipfile.ZipInfo(f"{place}{kind}")
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return out.getvalue()
