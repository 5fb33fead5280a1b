"""`ExportedTranslator` on outputs of signatures that small exports do not produce."""

import numpy as np
import tensorflow as tf

from keras_transformer.saving.saved_model import ExportedTranslator


def test_attend_keeps_empty_pieces_within_a_row(monkeypatch):
    """An unknown subword may have no bytes. Its attention belongs to no other one."""
    attention = np.arange(16, dtype="float32").reshape(1, 4, 4)
    outputs = {
        "source_pieces": tf.constant([["a", "", " b", ""]]),
        "target_pieces": tf.constant([["", "c", "", ""]]),
        "attention": tf.constant(attention),
    }
    translator = ExportedTranslator.__new__(ExportedTranslator)
    monkeypatch.setattr(translator, "_signature", lambda name: None)
    monkeypatch.setattr(translator, "_run", lambda *arguments: [([0], outputs)])
    ((source, target, found),) = translator.attend(["a? b"], ["?c"])
    assert (source, target) == (["a", "", " b"], ["", "c"])
    np.testing.assert_array_equal(found, attention[0, :2, :3])
