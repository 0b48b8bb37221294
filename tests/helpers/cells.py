"""Files of AnnData, written by h5py as anndata 0.8 and later write them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np


def write_cells(
    path: Path,
    X: Any,
    types: Sequence[str | float],
    *,
    genes: Sequence[str] | None = None,
    labels: str = "categorical",
    kind: str = "csr_matrix",
    **arrays: Any,
) -> None:
    """Write cells of these types, with weights 1, 2, …; ``arrays`` : in place of offsets, indices
    or shape of a CSR matrix."""
    genes = genes or [f"g{k}" for k in range(X.shape[1])]
    text = h5py.string_dtype()
    with h5py.File(path, "w") as file:
        if isinstance(X, np.ndarray):
            file["X"] = X
        else:
            group = file.create_group("X")
            group.attrs.update({"encoding-type": kind, "shape": arrays.get("shape", X.shape)})
            group["indptr"] = arrays.get("offsets", X.indptr)
            group["indices"], group["data"] = arrays.get("indices", X.indices), X.data
        for name, index in ("obs", [f"c{k}" for k in range(len(types))]), ("var", genes):
            frame = file.create_group(name)
            frame.create_dataset("_index", data=[*index], dtype=text)
            columns = ["type", "w"] if name == "obs" else []
            frame.attrs["_index"] = "_index"
            frame.attrs["column-order"] = np.array(columns, dtype=text)
        obs = file["obs"]
        obs["w"] = np.arange(1.0, len(types) + 1.0)
        if not all(isinstance(name, str) for name in types):
            obs["type"] = np.array(types)
            return
        if labels == "text":
            obs.create_dataset("type", data=[*types], dtype=text)
            return
        names = sorted({*types})
        column = obs.create_group("type")
        column.attrs["encoding-type"] = "categorical"
        column.create_dataset("categories", data=names, dtype=text)
        column["codes"] = np.array([names.index(name) for name in types], np.int8)
