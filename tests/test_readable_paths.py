"""Paths under which TensorFlow writes files, but cannot read them."""

import os

import pytest
import tensorflow as tf

from keras_transformer.errors import UserError
from keras_transformer.export import export_saved_model
from keras_transformer.files import require_readable_path
from keras_transformer.opening import open_model

NAMES = ["plain", "a [1]", "a\\b", "a[", "a]b[", "a?", "a*", "{1}", "%s", "Über , $x"]


@pytest.mark.parametrize("name", NAMES)
def test_require_readable_path_agrees_with_tensorflow(tmp_path, name):
    path = str(tmp_path / name / "ckpt")
    (tmp_path / name).mkdir()
    checkpoint = tf.train.Checkpoint(weight=tf.Variable(3.0))
    checkpoint.write(path)
    try:
        checkpoint.read(path)
    except tf.errors.NotFoundError:
        with pytest.raises(UserError, match="TensorFlow cannot read files"):
            require_readable_path(path, UserError)
    else:
        require_readable_path(path, UserError)


def test_exports_refuse_such_paths(tiny_model, tiny_export, tmp_path):
    folder = tmp_path / "a [1]"
    with pytest.raises(UserError, match=r"a \[1\]: TensorFlow cannot read"):
        export_saved_model(*tiny_model, folder)
    assert not folder.exists()
    os.symlink(tiny_export.parent, folder)
    with pytest.raises(UserError, match=r"a \[1\].*: TensorFlow cannot read"):
        open_model(folder)
