"""Values of the options that all commands share: --quiet, --verbose and --device."""

import contextlib
import dataclasses
import os
import re

from keras_transformer.errors import UserError, install_hint

# TensorFlow's minimum log level. --verbose overrides a value set by the user.
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# Level 3 hides all messages that TensorFlow itself can hide.
_SHOWS_LIBRARIES = os.environ.get(_LOG_LEVEL, "3") in ("0", "1", "2")


@dataclasses.dataclass
class Settings:
    """Values of the common options.

    The command that runs has them as `current`, a variable of the module, so that
    threads that it starts have the same values.
    """

    quiet: bool = False
    verbose: bool = False
    device: str | None = None

    @property
    def shows_libraries(self):
        """Whether TensorFlow and other native libraries may print messages."""
        return self.verbose or _SHOWS_LIBRARIES


current = Settings()


@contextlib.contextmanager
def apply_settings(settings):
    """Makes settings current in the context, and sets TensorFlow's variables."""
    global current
    if settings.quiet and settings.verbose:
        raise UserError("--quiet and --verbose cannot be used together")
    before = current
    environment = {name: os.environ.get(name) for name in (_LOG_LEVEL, _VISIBLE_GPUS)}
    try:
        if settings.device is not None:
            _select_gpus(settings.device)
        # `console.quiet_libraries` hides messages only while TensorFlow loads. Level 3
        # also hides later messages, e.g. about GPUs. Level 0 shows all.
        os.environ.setdefault(_LOG_LEVEL, "3")
        if settings.verbose:
            os.environ[_LOG_LEVEL] = "0"
        current = settings
        yield
    finally:
        current = before
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


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
