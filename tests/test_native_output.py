"""SentencePiece's message about a missing normalization table is hidden."""

import os
import tempfile

from keras_transformer.export.load import load_saved_model
from keras_transformer.native_output import hide_normalizer_message
from keras_transformer.pipelines import train_tokenizer
from keras_transformer.pipelines.tokenizers.byte_pairs import BytePairTokenizer

MESSAGE = b"normalizer.cc(51) LOG(INFO) precompiled_charsmap is empty. use identity\n"


def test_loading_hides_only_the_normalizer_message(capfd):
    """All other lines on standard error are kept, also an unfinished one."""
    with hide_normalizer_message():
        os.write(2, MESSAGE + b"normalizer.cc(99) LOG(ERROR) other\nunfinished")
    assert capfd.readouterr().err == "normalizer.cc(99) LOG(ERROR) other\nunfinished"
    model = train_tokenizer("bpe", ["ein Mann läuft"] * 9, 280).model
    BytePairTokenizer(model).tokenize(["ein"])
    assert capfd.readouterr().err == ""


def test_lines_are_not_hidden_without_a_file_to_hold_them(monkeypatch, capfd):
    with monkeypatch.context() as patch:
        # pytest itself needs the temporary folder after the test.
        patch.setattr(tempfile, "tempdir", "/nonexistent")
        with hide_normalizer_message():
            os.write(2, MESSAGE)
    assert capfd.readouterr().err.encode() == MESSAGE


def test_loading_an_export_hides_the_normalizer_message(small_batch_export, capfd):
    capfd.readouterr()
    load_saved_model(small_batch_export)
    assert "normalizer.cc" not in capfd.readouterr().err
