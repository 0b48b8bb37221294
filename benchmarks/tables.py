"""Compare `fit --columns` with the same ColumnTransformer and LinearSVC in memory.

    python benchmarks/tables.py [--rows 5000000] [--formats parquet,csv,jsonl]

The same typed rows with nulls, categories and dates, loading included on both sides; and how far
the weights of both are apart on the first rows, at a tolerance of 1e-8.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from scipy import sparse
from sklearn.svm import LinearSVC

import streamtron
from streamtron.data.transformers import column_transformer, parse_spec

COLUMNS = (
    "age:number",
    "income:number",
    "clicks:number",
    "city:category",
    "premium:category",
    "signup:date",
    "ts:date",
)
CITIES = ["Bern", "Bonn", "Linz", "Oslo", "Paris", "Rome"]


def typed_rows(rows: int) -> pa.Table:
    """A table of people: 3 % of the ages and 5 % of the cities are null."""
    rng = np.random.default_rng(0)
    age, city = rng.normal(45, 15, rows).round(1), rng.integers(0, 6, rows, np.int32)
    premium, clicks = rng.random(rows) < 0.3, rng.poisson(2, rows).astype(np.int32)
    score = (age - 45) / 15 + 0.8 * premium - 0.5 * (city == 3) + 0.3 * clicks
    cities = pa.array(city, mask=rng.random(rows) < 0.05)
    seconds = rng.integers(0, 86_400 * 300, rows)
    return pa.table(
        {
            "label": (score + rng.normal(0, 1, rows) > 1).astype(np.int8),
            "age": pa.array(age, mask=rng.random(rows) < 0.03),
            "income": rng.lognormal(10, 1, rows).round(2),
            "clicks": clicks,
            "city": pa.DictionaryArray.from_arrays(cities, CITIES),
            "premium": premium,
            "signup": np.datetime64("2020-01-01") + rng.integers(0, 2000, rows),
            "ts": np.datetime64("2024-01-01T00:00:00", "s") + seconds,
        }
    )


def write(table: pa.Table, path: Path) -> Path:
    """Write the table in the format of the path."""
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return path
    plain = table.set_column(4, "city", table["city"].cast(pa.string()))
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(plain, path)
    else:
        frame = plain.to_pandas().assign(signup=lambda known: known["signup"].astype(str))
        frame.to_json(path, orient="records", lines=True, date_format="iso")
    return path


def transformed(path: Path, rows: int | None = None) -> tuple[sparse.csr_array, np.ndarray]:
    """Return what the same transformer makes of a Parquet file, and the labels."""
    frame = pq.read_table(path).slice(0, rows).to_pandas()
    for name in ("signup", "ts"):
        frame[name] = pd.to_datetime(frame[name])
    for name in ("city", "premium"):
        frame[name] = frame[name].astype(object)
    transformer = column_transformer([parse_spec(column) for column in COLUMNS])
    X = sparse.csr_array(transformer.fit_transform(frame), dtype=np.float32)
    return X, frame["label"].to_numpy()


def difference(table: pa.Table, place: Path) -> float:
    """Return the distance of both weight vectors, as a share of their length."""
    path = write(table.slice(0, 20_000), place / "sample.parquet")
    ours = streamtron.fit(path, columns=COLUMNS, tol=1e-8)
    X, y = transformed(path)
    theirs = LinearSVC(dual=False, tol=1e-10, max_iter=10_000).fit(X, y)
    apart = np.append(ours.weights - theirs.coef_[0], ours.bias - theirs.intercept_[0])
    return float(np.linalg.norm(apart) / np.linalg.norm(theirs.coef_))


def fitted(path: Path) -> tuple[float, float, float]:
    """Fit, and return the seconds, the gap and the peak memory of this process in MiB."""
    streamtron.fit(path, columns=COLUMNS[2:3], max_epochs=1)  # loads what is needed
    began = time.perf_counter()
    model = streamtron.fit(path, columns=COLUMNS)
    seconds = time.perf_counter() - began
    status = Path("/proc/self/status").read_text(encoding="utf-8")  # ru_maxrss has the parent's too
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    return seconds, model.certificate["relative_duality_gap"], peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--formats", default="parquet,csv,jsonl")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place, table = Path(directory), typed_rows(given.rows)
        print(f"weights on a sample  {difference(table, place):.1e} apart")
        parquet = write(table, place / "rows.parquet")
        for name in given.formats.split(","):
            path = parquet if name == "parquet" else write(table, place / f"rows.{name}")
            with multiprocessing.get_context("spawn").Pool(1) as process:
                seconds, gap, peak = process.apply(fitted, (path,))
            print(f"{name:<21}{seconds:8.2f} s   gap {gap:.1e}   peak {peak:.0f} MiB")
        began = time.perf_counter()
        LinearSVC(dual=False).fit(*transformed(parquet))
        print(f"scikit-learn         {time.perf_counter() - began:8.2f} s")


if __name__ == "__main__":
    main()
