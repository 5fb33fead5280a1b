"""Compiles and runs `export/translate.c`, which translates with TensorFlow's C API."""

import pathlib
import shutil
import subprocess

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

SOURCE = pathlib.Path(__file__).parent / "export" / "translate.c"
# gold links TensorFlow's large libraries in a quarter of the default linker's time.
LINKER = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def compile_program(folder):
    """Compiles the program in a folder and returns its path.

    Skips the test if a C compiler or TensorFlow's C headers are missing.
    """
    if COMPILER is None:
        pytest.skip("no C compiler")
    package = pathlib.Path(tf.__file__).parent
    libraries = sorted(
        path for path in package.glob("libtensorflow_*.so.*") if path.is_file()
    )
    if not libraries or not (package / "include/tensorflow/c/c_api.h").is_file():
        pytest.skip("this TensorFlow comes without its C headers or libraries")
    path = folder / "translate"
    subprocess.run(
        [
            *(COMPILER, "-std=gnu11", "-Wall", "-Werror", "-o", path, SOURCE),
            *("-I", package / "include", f"-Wl,-rpath,{package}"),
            *(*LINKER, *libraries),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return path


def run_program(program, export, libraries, texts):
    """Runs the program; returns its exit status, standard output, and standard error.

    Args:
        program: Path of the program.
        export: Path of a version folder of an export.
        libraries: Paths of the shared libraries that the export's tokenizer needs.
        texts: List of str, one line each.
    """
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
