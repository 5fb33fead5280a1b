"""An export of a model imported from Marian, run by programs without this package."""

import os
import pathlib

import pytest
import tensorflow_text
from benchmark_scripts import load_script
from c_program import compile_program, run_program
from toolkit_models import HOSTILE_TEXTS, PIECES, SETTINGS, random_arrays, write_marian

import keras_transformer as kt
from keras_transformer.export import export_saved_model
from keras_transformer.interop.from_marian import import_marian
from keras_transformer.serving import ServedModel

pytestmark = pytest.mark.slow
# The C program reads one text per line.
TEXTS = [text for text in HOSTILE_TEXTS if not set(text) & {"\n", "\0"}]
# Environment variable: path of a Python interpreter with another TensorFlow version
# and the matching tensorflow-text.
OTHER_PYTHON = "OTHER_TENSORFLOW_PYTHON"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An export of a model with two vocabularies, and its translations in Python."""
    folder = tmp_path_factory.mktemp("imported")
    settings = {**SETTINGS, "tied-embeddings-all": False, "tied-embeddings": True}
    source = write_marian(folder / "marian", random_arrays(shared=False), settings)
    imported = import_marian(source)
    model, tokenizer = imported.model, imported.tokenizer
    search = kt.BeamSearch(**imported.decoding, extra_length=7)
    translator = kt.Translator(model, tokenizer, tokenizer.target, search)
    expected = translator.translate(TEXTS)
    assert len(set(expected)) > 5
    return export_saved_model(model, tokenizer, folder / "export", search), expected


def test_imported_model_translates_in_c(exported, tmp_path):
    program = compile_program(tmp_path)
    folder = pathlib.Path(tensorflow_text.__file__).parent / "python" / "ops"
    library = folder / "_sentencepiece_tokenizer.so"
    code, found, errors = run_program(program, exported[0], [library], TEXTS)
    assert code == 0, errors[-2000:]
    assert found.removesuffix("\n").split("\n") == exported[1]


def test_warm_up_requests_end_with_the_end_id_of_the_source(exported):
    model = ServedModel(exported[0])
    assert PIECES.index("</s>") != 3
    requests = dict(model.warm_up_requests())
    assert requests["encode"]["source_ids"][0][-1] == PIECES.index("</s>")
    for signature, columns in requests.items():
        assert model.run(signature, columns)


def test_imported_model_translates_in_another_tensorflow(exported):
    python = os.environ.get(OTHER_PYTHON)
    if not python:
        pytest.skip(f"{OTHER_PYTHON} is not set")
    runtimes = load_script("other_runtimes")
    version, found = runtimes.translate_in_python(python, exported[0], TEXTS)
    assert version
    assert found == exported[1]
