"""The export without Python: a C program on the loader that TF-Serving shares."""

import pathlib
import shutil
import subprocess

import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.protobuf import saved_model_pb2
from tiny_export import TEXTS

import keras_transformer as kt

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


def test_a_c_program_translates_the_same(program, tiny_export, tiny_model):
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((tiny_export / "saved_model.pb").read_bytes())
    signature = model.meta_graphs[0].signature_def["serving_default"]
    (source,) = signature.inputs.values()
    operation, _, index = signature.outputs["translations"].name.rpartition(":")
    folder = pathlib.Path(tensorflow_text.__file__).parent / "python" / "ops"
    library = folder / "_sentencepiece_tokenizer.so"
    texts = [text for text in TEXTS if "\t" not in text]
    done = subprocess.run(
        [
            *(program, tiny_export, source.name.rpartition(":")[0]),
            *(operation, index, library),
        ],
        input="".join(f"{text}\n" for text in texts).encode(),
        capture_output=True,
        env={"TF_CPP_MIN_LOG_LEVEL": "3"},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    translator = kt.Translator(
        *tiny_model, beam_size=4, extra_length=7, max_source_length=40
    )
    # The fresh model writes line ends too.
    expected = "".join(f"{text}\n" for text in translator.translate(texts))
    assert done.stdout.decode() == expected
    assert len(expected) > 20
