"""Translation with an export in other processes: a C program, or another TensorFlow."""

import json
import pathlib
import subprocess

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "tests/export/translate.c"
CODE = """
import json, sys
import tensorflow as tf
import tensorflow_text
model = tf.saved_model.load(sys.argv[1])
texts = tf.constant(json.load(sys.stdin))
found = model.signatures["serving_default"](inputs=texts)["translations"]
texts = [text.decode() for text in found.numpy().ravel().tolist()]
json.dump([tf.__version__, texts], sys.stdout)
"""


def translate_in_python(python, export, lines):
    """Returns the version of another Python's TensorFlow, and the translations.

    Args:
        python: Path of a Python interpreter with tensorflow and tensorflow-text.
        export: Version folder of a SavedModel.
        lines: List of str.
    """
    found = subprocess.run(
        [python, "-c", CODE, export],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(found.stdout.splitlines()[-1])


def translate_in_c(export, lines, folder):
    """Returns the translations of a C program, which uses TensorFlow's C API.

    Args:
        export: Version folder of a SavedModel.
        lines: List of str, at most 1,024.
        folder: Folder for the compiled program.
    """
    import tensorflow as tf
    import tensorflow_text
    from tensorflow.core.protobuf import saved_model_pb2

    package = pathlib.Path(tf.__file__).parent
    program = folder / "translate"
    libraries = sorted(package.glob("libtensorflow_*.so.*"))
    subprocess.run(
        [
            *("cc", "-std=gnu11", "-o", program, PROGRAM, "-I", package / "include"),
            *(f"-Wl,-rpath,{package}", *libraries),
        ],
        check=True,
    )
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((export / "saved_model.pb").read_bytes())
    signature = model.meta_graphs[0].signature_def["serving_default"]
    (source,) = signature.inputs.values()
    operation, _, index = signature.outputs["translations"].name.rpartition(":")
    operations = pathlib.Path(tensorflow_text.__file__).parent / "python" / "ops"
    found = subprocess.run(
        [
            *(program, export, source.name.rpartition(":")[0], operation, index),
            operations / "_sentencepiece_tokenizer.so",
        ],
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        check=True,
    )
    return found.stdout.decode().removesuffix("\n").split("\n")
