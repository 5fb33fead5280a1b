"""Exports that a C program runs, against `Translator`.

TensorFlow's C API loads a SavedModel with the same code as TF-Serving.
"""

import pathlib

import pytest
import tensorflow_text
from c_program import compile_program, run_program
from tiny_export import TEXTS


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compile_program(tmp_path_factory.mktemp("c"))


@pytest.fixture(scope="module")
def expected(tiny_translator):
    """Texts, and the program's expected output: each translation and a line end."""
    texts = [text for text in TEXTS if "\t" not in text]
    # Translations of this random model contain line ends, so the whole output is
    # compared and not split into lines.
    found = "".join(f"{text}\n" for text in tiny_translator.translate(texts))
    assert len(found) > 20
    return texts, found


def test_c_program_matches_python(program, tiny_export, expected):
    folder = pathlib.Path(tensorflow_text.__file__).parent / "python" / "ops"
    library = folder / "_sentencepiece_tokenizer.so"
    code, found, errors = run_program(program, tiny_export, [library], expected[0])
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
