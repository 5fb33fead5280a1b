"""Tests of an export in a C program, whose loader TF-Serving uses as well."""

import pathlib
import shutil
import subprocess

import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.protobuf import saved_model_pb2
from tiny_export import TEXTS

SOURCE = pathlib.Path(__file__).with_name("translate.c")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no C compiler")
    package = pathlib.Path(tf.__file__).parent
    libraries = sorted(
        path for path in package.glob("libtensorflow_*.so.*") if path.is_file()
    )
    if not libraries or not (package / "include/tensorflow/c/c_api.h").is_file():
        pytest.skip("this TensorFlow comes without its C headers or libraries")
    path = tmp_path_factory.mktemp("c") / "translate"
    subprocess.run(
        [
            *(COMPILER, "-std=gnu11", "-Wall", "-Werror", "-o", path, SOURCE),
            *("-I", package / "include", f"-Wl,-rpath,{package}"),
            *libraries,
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return path


def run(program, export, libraries, texts):
    """Returns what the program prints for an export."""
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((export / "saved_model.pb").read_bytes())
    signature = model.meta_graphs[0].signature_def["serving_default"]
    (source,) = signature.inputs.values()
    operation, _, index = signature.outputs["translations"].name.rpartition(":")
    done = subprocess.run(
        [
            *(program, export, source.name.rpartition(":")[0]),
            *(operation, index, *libraries),
        ],
        input="".join(f"{text}\n" for text in texts).encode(),
        capture_output=True,
        env={"TF_CPP_MIN_LOG_LEVEL": "3"},
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture(scope="module")
def expected(tiny_translator):
    """Texts and the expected output of the program."""
    texts = [text for text in TEXTS if "\t" not in text]
    # The untrained model also generates line ends.
    found = "".join(f"{text}\n" for text in tiny_translator.translate(texts))
    assert len(found) > 20
    return texts, found


def test_c_program_matches_python(program, tiny_export, expected):
    folder = pathlib.Path(tensorflow_text.__file__).parent / "python" / "ops"
    library = folder / "_sentencepiece_tokenizer.so"
    code, found, errors = run(program, tiny_export, [library], expected[0])
    assert code == 0, errors[-2000:]
    assert found == expected[1]


@pytest.mark.slow
def test_core_export_needs_no_custom_operations(
    program, tiny_export, core_export, expected
):
    code, found, errors = run(program, core_export, [], expected[0])
    assert code == 0, errors[-2000:]
    assert found == expected[1]
    code, _, errors = run(program, tiny_export, [], expected[0])
    assert code == 1
    assert "Sentencepiece" in errors
