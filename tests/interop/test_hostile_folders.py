"""Malicious Marian and Hugging Face model folders are refused."""

import json
import tracemalloc
import zipfile

import numpy as np
import pytest
import yaml
from import_checks import import_error
from sentencepiece import sentencepiece_model_pb2
from toolkit_models import (
    SETTINGS,
    huggingface_arrays,
    npz,
    random_arrays,
    safetensors,
    splitter,
    write_huggingface,
    write_marian,
)

from keras_transformer.interop.from_huggingface import import_huggingface
from keras_transformer.interop.from_marian import import_marian

# Each alias stands for nine times as many values as the one before it.
ALIASES = "a0: &a0 [1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)


@pytest.fixture
def marian(tmp_path):
    return write_marian(tmp_path / "marian", random_arrays())


@pytest.fixture
def huggingface(tmp_path):
    return write_huggingface(tmp_path / "huggingface", random_arrays())


def split_safetensors(content):
    """Returns the header of a safetensors file as a dict, and the data after it."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def test_settings_of_300_mb_are_refused_before_reading(marian):
    path = marian / "model.npz"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            with archive.open(name, "w") as member:
                member.write(content)
                if name == "special:model.yml.npy":
                    for _ in range(300):
                        member.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        message = import_error(import_marian, marian)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()
    assert "special:model.yml must have at most 65,536 bytes" in message


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("x: !!python/object/apply:pathlib.Path.touch [{}]\n", "not valid YAML"),
        ("x: !!python/name:os.system\n", "not valid YAML"),
        (f"{ALIASES}x: *a29\n", "more than 10,000 values"),
        ("x: &x [*x]\n", "values"),
        ("dec-depth: 2\n", "the key dec-depth is given twice"),
        ("input-types: |\n  two\n  lines\n", "input-types: two lines cannot"),
    ],
)
def test_settings_of_a_model_are_plain_yaml(marian, end, reason):
    mark = marian / "mark"
    text = yaml.safe_dump({**SETTINGS, "input-types": []})
    if end.startswith("input-types"):
        text = text.replace("input-types: []\n", "")
    text += end.format(mark) if "{}" in end else end
    (marian / "model.npz").write_bytes(npz(random_arrays(), text))
    assert reason in import_error(import_marian, marian)
    assert not mark.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table[: len(table) // 2],
        # The first four bytes are the size of the trie, and its root comes next. This
        # root points beyond the end.
        lambda table: table[:4] + b"\xff\xff\xff\x7f" + table[8:],
        # The size exceeds the table.
        lambda table: b"\xff\xff\xff\xff" + table[4:],
    ],
)
def test_damaged_charsmap_is_refused(marian, huggingface, change):
    proto = sentencepiece_model_pb2.ModelProto.FromString(splitter())
    spec = proto.normalizer_spec
    spec.precompiled_charsmap = change(spec.precompiled_charsmap)
    for read, folder in ((import_marian, marian), (import_huggingface, huggingface)):
        (folder / "target.spm").write_bytes(proto.SerializeToString())
        assert "normalization table" in import_error(read, folder)


def test_array_with_and_without_suffix_is_refused(marian):
    with zipfile.ZipFile(marian / "model.npz", "a") as archive:
        archive.writestr("Wemb", archive.read("Wemb.npy"))
    assert "contains an array twice" in import_error(import_marian, marian)


@pytest.mark.parametrize(("copies", "unused"), [(1000, 0), (1, 1 << 20)])
def test_safetensors_that_share_bytes_are_refused(huggingface, copies, unused):
    path = huggingface / "model.safetensors"
    header, data = split_safetensors(safetensors(huggingface_arrays(random_arrays())))
    for number in range(copies):
        header[f"copy{number}"] = header["model.shared.weight"]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data + bytes(unused))
    assert "not a safetensors file" in import_error(import_huggingface, huggingface)


@pytest.mark.backends
def test_bin_file_with_more_weights_than_bytes_is_refused(huggingface):
    import torch

    state = {
        name: torch.tensor(array)
        for name, array in huggingface_arrays(random_arrays()).items()
    }
    (huggingface / "model.safetensors").unlink()
    path = huggingface / "pytorch_model.bin"
    # One stored number stands for 2^40 numbers.
    large = torch.zeros(1).expand(1 << 20, 1 << 20)
    torch.save({**state, "model.shared.weight": large}, path)
    assert "more than 4 times the file's" in import_error(
        import_huggingface, huggingface
    )
    torch.save({**state, 7: torch.zeros(1)}, path)
    assert "names of its arrays" in import_error(import_huggingface, huggingface)
    torch.save(state, path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/99", bytes(10 << 20))
    error = import_error(import_huggingface, huggingface)
    assert "Arrays must not be compressed" in error


@pytest.mark.backends
def test_arrays_of_a_bin_file_must_be_finite(huggingface):
    import torch

    arrays = huggingface_arrays(random_arrays())
    arrays["model.shared.weight"][3, 3] = np.inf
    (huggingface / "model.safetensors").unlink()
    state = {name: torch.tensor(array) for name, array in arrays.items()}
    torch.save(state, huggingface / "pytorch_model.bin")
    assert "not finite" in import_error(import_huggingface, huggingface)


@pytest.mark.parametrize("shape", [(10**12, 0), ()])
def test_positions_of_impossible_shapes_are_refused(huggingface, shape):
    name = "model.encoder.embed_positions.weight"
    header, data = split_safetensors(safetensors(huggingface_arrays(random_arrays())))
    end = len(data) + (4 if shape == () else 0)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), end]}
    header = json.dumps(header).encode()
    content = len(header).to_bytes(8, "little") + header + data.ljust(end, b"\0")
    (huggingface / "model.safetensors").write_bytes(content)
    assert "positions" in import_error(import_huggingface, huggingface)


@pytest.mark.parametrize(
    "header", ["{'descr': (", "'''abc", "{[]:1}", "{'descr': (), }", "-" * 9000 + "1"]
)
def test_malformed_array_headers_are_refused(marian, header):
    text = header.encode().ljust(9100) + b"\n"
    array = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    with zipfile.ZipFile(marian / "model.npz", "w") as archive:
        archive.writestr("encoder_Wemb.npy", array)
    assert "model.npz" in import_error(import_marian, marian)
