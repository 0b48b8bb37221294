"""Objects of the trainer as JSON and arrays, and back: what a checkpoint is made of.

Only the classes named here are ever built, from their fields alone: nothing in a file is executed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamtron.core.certificate import Certificate, ScanSums
from streamtron.solver.duals import Counts
from streamtron.solver.report import StageReport
from streamtron.solver.scan import Frozen
from streamtron.solver.solution import Average
from streamtron.solver.stages import Stage
from streamtron.solver.weights import WeightState

_KNOWN = (Average, Certificate, Counts, WeightState, ScanSums, Frozen, Stage, StageReport)
_CLASSES: dict[str, type] = {known.__name__: known for known in _KNOWN}

Arrays = dict[str, NDArray[Any]]


class Packer:
    """Packs values; ``arrays`` collects the arrays met, each once however often it is met.

    Examples
    --------
    >>> packer = Packer()
    >>> vector = np.array([1.0, 2.0])
    >>> packed = packer.pack({"w": vector, "best": [vector, math.inf]})
    >>> found = unpack(packed, packer.arrays)
    >>> found["w"] is found["best"][0], found["best"][1]
    (True, inf)
    """

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        self._names: dict[int, str] = {}

    def pack(self, value: Any) -> Any:
        """The value as JSON holds it: None, numbers, text, lists, arrays, dictionaries, and objects
        of the trainer's classes."""
        if value is None or isinstance(value, bool | str | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, np.ndarray):
            return {"array": self._name(value)}
        if isinstance(value, list | tuple):
            return [self.pack(item) for item in value]
        if isinstance(value, dict):
            return {"dict": [[self.pack(key), self.pack(item)] for key, item in value.items()]}
        if isinstance(value, Counts):
            return {"counts": [self._name(array) for array in value.gaps()]}
        name = type(value).__name__
        if _CLASSES.get(name) is not type(value):
            raise TypeError(f"{name}: no part of a checkpoint")
        return {"class": name, "fields": self.pack(_fields(value))}

    def _name(self, array: NDArray[Any]) -> str:
        name = self._names.setdefault(id(array), f"{len(self._names):06d}")
        self.arrays[name] = array  # and keeps it alive, so that no other gets its id
        return name


def unpack(packed: Any, arrays: Arrays) -> Any:
    """The value that ``Packer`` packed.

    Raises
    ------
    KeyError, TypeError, ValueError : what was packed is not so.
    """
    if isinstance(packed, list):
        return [unpack(item, arrays) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if "float" in packed:
        return float(packed["float"])
    if "array" in packed:
        return arrays[packed["array"]]
    if "counts" in packed:
        return Counts.of_gaps(*(arrays[name] for name in packed["counts"]))
    if "dict" in packed:
        return {unpack(key, arrays): unpack(item, arrays) for key, item in packed["dict"]}
    made: Any = object.__new__(_CLASSES[packed["class"]])
    for name, value in unpack(packed["fields"], arrays).items():
        object.__setattr__(made, name, value)
    return made


def _fields(value: Any) -> dict[str, Any]:
    names = getattr(type(value), "__slots__", None) or vars(value)
    return {name: getattr(value, name) for name in names}
