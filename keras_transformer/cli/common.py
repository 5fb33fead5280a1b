"""Options of all commands: --quiet, --verbose and, except for a few commands, --device.

They are parsed with the other options of a command but take effect before it runs.
"""

import contextlib
import dataclasses
import inspect
import os
import re
from typing import Annotated

from typer import Option

from keras_transformer.errors import UserError, install_hint

# TensorFlow's minimum log level. --verbose overrides a value set by the user.
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# Level 3 hides all messages that TensorFlow itself can hide.
_SHOWS_LIBRARIES = os.environ.get(_LOG_LEVEL, "3") in ("0", "1", "2")

_OUTPUT_OPTIONS = {
    "quiet": Annotated[
        bool, Option("--quiet", "-q", help="Print only results, warnings and errors.")
    ],
    "verbose": Annotated[
        bool, Option("--verbose", "-v", help="Print library messages and tracebacks.")
    ],
}
_DEVICE_OPTION = {
    "device": Annotated[
        str | None,
        Option(
            metavar="DEVICE", help="Device: cpu, gpu, or numbered GPUs, e.g. gpu:0,1."
        ),
    ],
}
COMMON_OPTIONS = (*_OUTPUT_OPTIONS, *_DEVICE_OPTION)


@dataclasses.dataclass
class Settings:
    """Values of the common options."""

    quiet: bool = False
    verbose: bool = False
    device: str | None = None

    @property
    def shows_libraries(self):
        """Whether TensorFlow and other native libraries may print messages."""
        return self.verbose or _SHOWS_LIBRARIES


current = Settings()


def add_options(run, function, uses_device=True):
    """Adds the common options to the parameters of `run`, which wraps `function`.

    Typer reads the options of a command from its signature and annotations.
    """
    added = {**_OUTPUT_OPTIONS, **(_DEVICE_OPTION if uses_device else {})}
    signature = inspect.signature(function)
    run.__signature__ = signature.replace(
        parameters=[
            *signature.parameters.values(),
            *(
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=None if name in _DEVICE_OPTION else False,
                    annotation=annotation,
                )
                for name, annotation in added.items()
            ),
        ]
    )
    run.__annotations__ = {**function.__annotations__, **added}


@contextlib.contextmanager
def override_settings(**changes):
    """Changes values of the common options inside the context."""
    before = dataclasses.replace(current)
    settings = dataclasses.replace(current, **changes)
    environment = {name: os.environ.get(name) for name in (_LOG_LEVEL, _VISIBLE_GPUS)}
    if settings.quiet and settings.verbose:
        raise UserError("--quiet and --verbose cannot be used together")
    try:
        if changes.get("device") is not None:
            _select_gpus(settings.device)
        # `console.quiet_libraries` hides messages only while TensorFlow loads. Level 3
        # also hides later messages, e.g. about GPUs. Level 0 shows all.
        os.environ.setdefault(_LOG_LEVEL, "3")
        if settings.verbose:
            os.environ[_LOG_LEVEL] = "0"
        _assign(settings)
        yield
    finally:
        _assign(before)
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _assign(settings):
    for name, value in dataclasses.asdict(settings).items():
        setattr(current, name, value)


def _select_gpus(device):
    """Makes only the GPUs of --device visible to TensorFlow, before it is loaded."""
    if not re.fullmatch(r"cpu|gpu(:\d+(,\d+)*)?", device):
        raise UserError(
            f"--device {device}: must be cpu, gpu, or GPU numbers such as gpu:0,1"
        )
    if device == "cpu":
        os.environ[_VISIBLE_GPUS] = "-1"
    numbers = _gpu_numbers(device)
    names = list(map(str, numbers))
    visible = os.environ.get(_VISIBLE_GPUS)
    if numbers and visible is not None:
        # The numbers are indices into the GPUs that the environment makes visible.
        known = [name for name in visible.split(",") if name not in ("", "-1")]
        if max(numbers) >= len(known):
            raise UserError(
                f"--device {device}: {_VISIBLE_GPUS}={visible} makes only {len(known)} "
                "GPU(s) visible"
            )
        names = [known[number] for number in numbers]
    if numbers:
        os.environ[_VISIBLE_GPUS] = ",".join(names)


def _gpu_numbers(device):
    numbers = device.partition(":")[2]
    return [int(number) for number in numbers.split(",")] if numbers else []


def check_device():
    """Checks that TensorFlow finds the GPUs of --device. Imports TensorFlow."""
    if current.device in (None, "cpu"):
        return
    import tensorflow as tf

    expected = len(_gpu_numbers(current.device)) or 1
    found = len(tf.config.list_physical_devices("GPU"))
    if found < expected:
        raise UserError(
            f"--device {current.device}: TensorFlow finds {found} GPU(s). "
            f"Check `nvidia-smi`, and install CUDA: {install_hint('gpu')}"
        )
