"""The sealed file: what is written is what is read, or the reader says that it is not."""

import itertools
import json
import os

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from streamtron.core.errors import FileDamaged
from streamtron.core.sealed import read_sealed, sealed_bytes, write_sealed
from tests.helpers.models import refused

CONTENT = {"name": "é\n", "numbers": [1, 0.1, None]}
TENSORS = {
    "weights": np.array([1.5, -2.0, 0.1]),
    "bias": np.array(0.25),
    "counts": np.array([2**31 - 1, -(2**31), 1], dtype=np.int32),
    "gaps": np.array([[2**32 - 1], [0]], dtype=np.uint32),
    "offsets": np.array([2**63 - 1], dtype=np.int64),
    "none": np.zeros((0, 3), dtype=np.uint32),
}
RAW = sealed_bytes(CONTENT, TENSORS)


def assert_same(found, wanted) -> None:
    """The same names, dtypes, shapes and bits."""
    assert sorted(found) == sorted(wanted)
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert found[name].tobytes() == tensor.tobytes()


dtypes = st.sampled_from([np.uint32, np.int32, np.int64, np.float64])
arrays = st.tuples(dtypes, st.integers(0, 5), st.binary(min_size=40, max_size=40)).map(
    lambda drawn: np.frombuffer(drawn[2], drawn[0])[: drawn[1]]
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


@given(st.dictionaries(names, arrays, max_size=5))
def test_any_names_and_any_mixture_of_lengths_and_dtypes_come_back(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("sealed") / "m"
    write_sealed(path, {}, tensors)
    assert_same(read_sealed(path)[1], tensors)


@pytest.mark.parametrize("code", ["<i4", ">i4"])
def test_equal_contents_are_equal_files_whatever_their_order_and_place_in_memory(code):
    backwards = {name: TENSORS[name] for name in reversed(TENSORS)}
    assert sealed_bytes({key: CONTENT[key] for key in reversed(CONTENT)}, backwards) == RAW
    plain = {"x": np.array([[1, 2], [3, 4]], dtype=np.int32)}
    strided = {"x": np.array([[1, 0, 3], [2, 0, 4]], dtype=code)[:, ::2].T}
    assert not strided["x"].flags["C_CONTIGUOUS"]
    assert sealed_bytes({}, strided) == sealed_bytes({}, plain)


def test_the_safetensors_library_opens_the_file(tmp_path):
    (tmp_path / "m").write_bytes(RAW)
    with safetensors.safe_open(tmp_path / "m", framework="np") as file:
        assert_same({name: file.get_tensor(name) for name in file.keys()}, TENSORS)  # noqa: SIM118
        assert json.loads(file.metadata()["streamtron"]) == CONTENT


@pytest.mark.parametrize(
    ("content", "tensors", "match"),
    [
        *(
            ({}, {"x": np.zeros(1, dtype)}, "tensor 'x'")
            for dtype in (np.complex64, np.int8, np.uint64, np.bool_, object, "U1")
        ),
        ({}, {"__metadata__": np.zeros(1)}, "__metadata__"),
        *(({"a": value}, {}, None) for value in (np.nan, np.inf, {1}, b"a")),
    ],
)
def test_what_no_file_can_hold_is_refused_and_not_written(tmp_path, content, tensors, match):
    with pytest.raises((TypeError, ValueError), match=match):
        write_sealed(tmp_path / "m", content, tensors)
    assert not list(tmp_path.iterdir())


def test_every_flipped_bit_is_found_and_the_file_named(tmp_path):
    tensors = {"a": np.arange(3, dtype=np.int32), "b": np.ones(2), "c": np.ones(1, np.uint32)}
    raws = (sealed_bytes({"a": "x" * n}, tensors) for n in range(8))
    # padding shall be among what is flipped
    raw = next(raw for raw in raws if raw[7 + int.from_bytes(raw[:8], "little")] == ord(" "))
    path = tmp_path / "m"
    path.write_bytes(raw)
    with open(path, "r+b", buffering=0) as file:  # in place: truncating each time is slow
        for at, bit in itertools.product(range(len(raw)), range(8)):
            os.pwrite(file.fileno(), bytes([raw[at] ^ 1 << bit]), at)
            assert str(path) in refused(lambda: read_sealed(path), FileDamaged)
            os.pwrite(file.fileno(), raw[at : at + 1], at)
    read_sealed(path)


def test_a_file_cut_at_any_length_or_with_bytes_added_is_refused(tmp_path):
    path = tmp_path / "m"
    for damaged in [*(RAW[:length] for length in range(len(RAW))), RAW + b"\0", RAW + RAW]:
        path.write_bytes(damaged)
        assert str(path) in refused(lambda: read_sealed(path), FileDamaged)


@pytest.mark.parametrize("blank", [b"\n", b"\t"])
def test_a_header_that_says_the_same_in_other_bytes_is_refused(tmp_path, blank):
    path = tmp_path / "m"
    raw = sealed_bytes({"a": "xxx"}, {"a": np.ones(1)})
    stop = 8 + int.from_bytes(raw[:8], "little")
    assert raw[stop - 1 : stop] == b" "
    inside = raw[:8] + raw[8 : stop - 1].replace(b'{"', b'{ "', 1) + raw[stop:]
    for same in (raw[: stop - 1] + blank + raw[stop:], inside):
        path.write_bytes(same)
        safetensors.numpy.load_file(path)  # others do not mind
        message = refused(lambda: read_sealed(path), FileDamaged)
        assert "m: not a streamtron model, or damaged" in message


@pytest.mark.parametrize("what", ["model", "witness"])
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "cut short: it is empty. Give a {what} that"),
        (b"1 3:0.5\n", "cut short: it begins with b'1 3:0.5"),
        (b"PAR1\x15\x04\x15\x10\x15" + bytes(50), "cut short: it begins with b'PAR1"),
        (b"\x08\0\0\0\0\0\0\0{}      ", "damaged: its checksum does not match"),
        (b"\x08\0\0\0\0\0\0\0[[[[[[[[", "cut short"),
        (b"\xff" * 8 + b"{}", "cut short"),
        (b"\x09\0\0\0\0\0\0\0{}      ", "cut short"),
    ],
)
def test_a_file_that_is_not_ours_is_told_what_was_wanted(tmp_path, content, sentence, what):
    (tmp_path / "x.bin").write_bytes(content)
    message = refused(lambda: read_sealed(tmp_path / "x.bin", what), FileDamaged)
    assert f"x.bin: not a streamtron {what}, or " in message
    assert sentence.format(what=what) in message
