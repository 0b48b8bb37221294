"""Text that is read in Python, because it is little: what the kernels would make of it."""

import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamtron.core import is_loaded, kernels
from streamtron.data import blocks
from streamtron.data.formats import libsvm, text_column, text_kernels, text_tables, words
from streamtron.data.formats.text_column import TextColumn
from streamtron.data.reader_config import ReaderConfig
from streamtron.data.writers.corpus import generate
from tests.helpers.examples import examples
from tests.helpers.libsvm_rows import batches
from tests.test_architecture import LOADED

KERNELS = [kernels.squared_norms, text_kernels.parse_libsvm]
"""That they are named loads numba: what is read from here on is read by kernels."""

READINGS = [
    ReaderConfig(), ReaderConfig(labels="optional", index_base=1), ReaderConfig(numbers=True),
    ReaderConfig(multiclass=True), ReaderConfig(multilabel=True),
]  # fmt: skip


@pytest.mark.parametrize("reading", READINGS, ids=repr)
def test_few_lines_are_parsed_to_the_kernels_rows_or_left_to_it(reading, tmp_path):
    assert is_loaded(text_kernels)
    generate(str(tmp_path / "corpus"), rows=300, columns=100, seed=0, shards=1)
    lines = next((tmp_path / "corpus").glob("*.svm")).read_bytes().splitlines()
    rng, parser, parsed = random.Random(0), libsvm._Parser(reading), 0
    for _ in range(500):
        line, at = rng.choice(lines), rng.randrange(60)
        sign = bytes(rng.choices(b"0123456789.:-+eE# \t,_nafixqd\r\x0b\0\xc3", k=rng.randrange(3)))
        text = line[:at] + sign + line[at + rng.randrange(2) :] + b"\n" + rng.choice(lines) + b"\n"
        few = parser.parse_few(bytearray(text))
        if few is None:
            continue
        parsed += 1
        [batch] = batches(text, reading)
        for array, same in zip(batch._replace(place=str), few[0]._replace(place=str), strict=True):
            if isinstance(array, np.ndarray):
                assert array.dtype == same.dtype
                assert array.tobytes() == same.tobytes(), text
            else:
                assert array == same
    assert parsed > 100


text = st.text(st.one_of(st.sampled_from("aB7_ .-éÉȺΣİ語😀"), st.characters(codec="utf-8")))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(text, max_size=4), st.booleans(), st.integers(1, 20))
def test_few_documents_have_the_kernels_words_in_the_kernels_columns(documents, lowercase, bits):
    column = TextColumn("x", hash_bits=bits, alternate_sign=True, lowercase=lowercase)
    rows = column.rows(documents)
    assert words.strings_of(documents).equals(pa.array(documents, pa.large_string()))
    with pytest.MonkeyPatch.context() as patch:
        for module in (words, text_column):
            patch.setattr(module, "is_few", lambda size: True)
        few = column.rows(documents)
    for name in ("indptr", "indices", "data"):
        assert getattr(rows, name).tobytes() == getattr(few, name).tobytes()


@settings(max_examples=examples(100))
@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=9), max_size=9))
def test_few_squares_are_summed_as_the_kernel_sums_them(rows):
    indptr = np.cumsum([0, *map(len, rows)])
    values = np.array([value for row in rows for value in row], np.float32)
    indices = np.arange(len(values), dtype=np.uint32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "is_loaded", lambda module: False)
        few = blocks.squares_of(indptr, indices, values)
    assert few.tobytes() == blocks.squares_of(indptr, indices, values).tobytes()


@given(st.text('[]{}"\\\n a', max_size=300).map(lambda t: t.replace("a", "[" * 20)))
def test_few_lines_of_json_are_not_shallow_where_the_kernel_says_that_they_are_deep(text):
    array = np.frombuffer(text.encode(), np.uint8)
    deep = text_kernels.too_deep(array, text_tables.MOST_NESTED)
    assert text_tables.is_shallow(bytearray(text.encode())) <= (deep == len(array))


def test_a_first_prediction_of_few_rows_or_texts_loads_no_numba(tmp_path):
    code = """
import sys, streamtron, numpy as np
from streamtron.runs.predict import write_predictions
from streamtron.model.linear_model import LinearModel
recipe = streamtron.Recipe.of("body:text,hash_bits=10")
reading = {"index_base": 0, "layout": "recipe", "recipe": recipe.to_dict()}
model = LinearModel(np.ones(1024), 0.5, ("no", "yes"), {}, {}, reading)
model.predict(["cheap pills", "Größe"])
model = LinearModel(np.ones(9), 0.5, (-1.0, 1.0), {}, {}, {"index_base": 1})
write_predictions(model, "rows.svm", "out.tsv")
"""
    (tmp_path / "rows.svm").write_text("1 1:1 3:0.5\n-1 2:2\n")
    words = [sys.executable, "-c", code + LOADED]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "numba" not in done.stdout
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 3
