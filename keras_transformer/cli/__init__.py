"""The `keras-transformer` command: one module per command.

Modules import TensorFlow and Keras only after the command has checked its arguments.
"""

import gc


def main() -> None:
    """Runs the command line."""
    from keras_transformer.cli.app import app

    try:
        # With `python -m`, completion would apply to the command `python`.
        app(prog_name="keras-transformer")
    finally:
        # At its exit, Python would search TensorFlow's objects for garbage for seconds.
        gc.freeze()
