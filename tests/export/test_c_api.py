"""Exports that a C program runs, against `Translator`.

TensorFlow's C API loads a SavedModel with the same code as TF-Serving.
"""

import os
import pathlib

import pytest
import tensorflow_text
from benchmark_scripts import load_script
from c_program import compile_program, run_program
from tiny_export import TEXTS
from toolkit_models import HOSTILE_TEXTS, PIECES, SETTINGS, random_arrays, write_marian

import keras_transformer as kt
from keras_transformer.export import export_saved_model
from keras_transformer.interop.from_marian import import_marian
from keras_transformer.serving import ServedModel

FOLDER = pathlib.Path(tensorflow_text.__file__).parent / "python" / "ops"
LIBRARY = FOLDER / "_sentencepiece_tokenizer.so"
# Environment variable: path of a Python interpreter with another TensorFlow version
# and the matching tensorflow-text.
OTHER_PYTHON = "OTHER_TENSORFLOW_PYTHON"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compile_program(tmp_path_factory.mktemp("c"))


@pytest.fixture(scope="module")
def expected(tiny_translator):
    """Texts, and the program's expected output: each translation and a line end."""
    texts = [text for text in TEXTS if "\t" not in text]
    # Translations of this random model contain line ends, so the whole output is
    # compared and not split into lines.
    found = tiny_translator.translate(texts, protect=())
    found = "".join(f"{text}\n" for text in found)
    assert len(found) > 20
    return texts, found


@pytest.mark.slow
def test_c_program_matches_python(program, tiny_export, expected):
    code, found, errors = run_program(program, tiny_export, [LIBRARY], expected[0])
    assert code == 0, errors[-2000:]
    assert found == expected[1]


@pytest.mark.slow
def test_core_export_needs_no_custom_operations(
    program, tiny_export, core_export, expected
):
    code, found, errors = run_program(program, core_export, [], expected[0])
    assert code == 0, errors[-2000:]
    assert found == expected[1]
    code, _, errors = run_program(program, tiny_export, [], expected[0])
    assert code == 1
    assert "Sentencepiece" in errors


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """An export of a Marian model, texts, and their translations in Python."""
    folder = tmp_path_factory.mktemp("imported")
    settings = {**SETTINGS, "tied-embeddings-all": False, "tied-embeddings": True}
    source = write_marian(folder / "marian", random_arrays(shared=False), settings)
    imported = import_marian(source)
    model, tokenizer = imported.model, imported.tokenizer
    search = kt.BeamSearch(**imported.decoding, extra_length=7)
    translator = kt.Translator(model, tokenizer, tokenizer.target, search)
    # The C program reads one text per line.
    texts = [text for text in HOSTILE_TEXTS if not set(text) & {"\n", "\0"}]
    found = translator.translate(texts, protect=())
    assert len(set(found)) > 5
    path = export_saved_model(model, tokenizer, folder / "export", search)
    return path, texts, found


@pytest.mark.slow
def test_imported_model_translates_in_c(program, imported):
    path, texts, expected = imported
    code, found, errors = run_program(program, path, [LIBRARY], texts)
    assert code == 0, errors[-2000:]
    assert found.removesuffix("\n").split("\n") == expected
    # Warm-up requests end with the end id of the source.
    model = ServedModel(path)
    assert PIECES.index("</s>") != 3
    requests = dict(model.warm_up_requests())
    assert requests["encode"]["source_ids"][0][-1] == PIECES.index("</s>")
    for signature, columns in requests.items():
        assert model.run(signature, columns)


@pytest.mark.slow
def test_imported_model_translates_in_another_tensorflow(imported):
    path, texts, expected = imported
    python = os.environ.get(OTHER_PYTHON)
    if not python:
        pytest.skip(f"{OTHER_PYTHON} is not set")
    runtimes = load_script("other_runtimes")
    version, found = runtimes.translate_in_python(python, path, texts)
    assert version
    assert found == expected
