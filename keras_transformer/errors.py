"""Errors that a user can fix, with one-line messages and exit codes."""

__all__ = [
    "CheckpointError",
    "DataError",
    "ExportError",
    "ModelError",
    "RecipeError",
    "RunBusyError",
    "RunError",
    "StorageError",
    "TrainingFaultError",
    "UserError",
    "WorkerLostError",
    "WorkersError",
]


def install_hint(extra):
    """Returns the command that installs the packages of an optional extra."""
    return f'pip install ".[{extra}]" in a clone of the repository'


# Message of an error in the model, as opposed to one in the text.
NOT_FINITE = (
    "the model computes NaN or infinity for a text. Use other weights, or float32 in "
    "place of float16"
)


def require_backend(what, *backends):
    """Checks that Keras uses one of `backends`, such as "tensorflow"."""
    import keras

    backend = keras.config.backend()
    if backend not in backends:
        names = {"tensorflow": "TensorFlow", "jax": "JAX"}
        raise ModelError(
            f"{what} needs Keras's {' or '.join(map(names.get, backends))} backend. "
            f"Received: {backend}. Set the environment variable "
            f"KERAS_BACKEND={backends[0]}"
        )


class UserError(ValueError):
    """Base class of errors that a user can fix.

    The message is one line that names the file, line, or setting. A command prints it
    and exits with `exit_code`.
    """

    exit_code = 2


class DataError(UserError):
    """Text, a tokenizer, or a data setting cannot be used."""


class RecipeError(UserError):
    """A recipe contains a mistake."""

    # A message may quote whole sections of the recipe.
    _MAX_LENGTH = 1_000

    def __init__(self, message):
        message = " ".join(message.split())
        if len(message) > self._MAX_LENGTH:
            message = f"{message[: self._MAX_LENGTH - 3]}..."
        super().__init__(message)


class ModelError(UserError):
    """A model cannot be opened, or does not support a request."""


class RunError(UserError):
    """A run folder cannot be used as it is."""


class RunBusyError(RunError):
    """Another process is training in the run folder."""


class StorageError(UserError):
    """A file or folder cannot be written."""


class CheckpointError(UserError):
    """No checkpoint can be read, or one does not match the model."""


class TrainingFaultError(UserError):
    """Training stopped because of invalid steps.

    One is enough with `on_nonfinite: stop`; otherwise, there were too many in a row.
    """


class WorkersError(UserError):
    """`TF_CONFIG` cannot be used, or the chief worker failed."""


class WorkerLostError(UserError):
    """Another worker ended or cannot be reached. Restart all workers."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


class ExportError(UserError):
    """A model cannot be exported in the requested format."""
