"""How the spark-*.parquet files beside this one were written: by Spark 4.3.0 itself.

    pip install pyspark==4.3.0 numpy        # and a Java runtime, 17 or later
    python write_with_spark.py

Tests read the files; nothing here is imported by them. The rows stand in
tests/data/test_layouts.py too.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import types as t

MAPS = [
    (1, {"age": 0.5, "height": -2.0}),
    (0, {"weight": 3.0}),
    (1, {}),
    (0, {"age": 0.1, "weight": 1.5, "height": 1.0}),
]
WORDS = [("spam", ["buy", "now", "now"]), ("ham", ["see", "you"]), ("ham", [])]

FEATURES = {
    "maps": (MAPS, t.IntegerType(), t.MapType(t.StringType(), t.DoubleType())),
    "words": (WORDS, t.StringType(), t.ArrayType(t.StringType())),
}


def main() -> None:
    """Each kind as Spark writes it today, and as Spark 1.4 wrote it."""
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
    for legacy in (False, True):
        spark.conf.set("spark.sql.parquet.writeLegacyFormat", legacy)
        for kind, (rows, label, features) in FEATURES.items():
            fields = [t.StructField("label", label), t.StructField("features", features)]
            table = spark.createDataFrame(rows, t.StructType(fields)).coalesce(1)
            with tempfile.TemporaryDirectory() as directory:
                table.write.mode("overwrite").parquet(directory)  # snappy, its default
                [part] = Path(directory).glob("part-*.parquet")
                name = f"spark-{kind}{'-legacy' if legacy else ''}.parquet"
                shutil.copy(part, Path(__file__).parent / name)


if __name__ == "__main__":
    main()
