"""Arrays in the files of other toolkits: `.npz`, safetensors, and PyTorch's `.bin`.

Code in the files is never executed. Sizes are checked before arrays are read.
"""

import importlib.util
import json
import zipfile

import ml_dtypes
import numpy as np

from keras_transformer.errors import ModelError
from keras_transformer.untrusted import require_regular, shorten

_MAX_BYTES = 8 << 30
# A PyTorch file stores a tied matrix once and may list it under up to this many names.
_MAX_NAMES = 4
_MAX_HEADER_BYTES = 100 << 20
_SAFETENSORS_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}


class Arrays:
    """The arrays of a model file. An import must use all but those in `ignored`."""

    def __init__(self, path, arrays, ignored=()):
        self.path = path
        self._arrays = arrays
        self._unused = set(arrays) - set(ignored)

    def __contains__(self, name):
        return name in self._arrays

    @property
    def num_weights(self):
        """Number of elements of all arrays."""
        return sum(array.size for array in self._arrays.values())

    def take(self, name, shape=None):
        """Returns an array as float32 and marks it as used."""
        array = self.raw(name)
        if shape is not None and array.shape != tuple(shape):
            raise ModelError(
                f"{self.path}: {name} must have the shape {list(shape)}. "
                f"Received: {list(array.shape)}"
            )
        self._unused.discard(name)
        array = np.asarray(array, np.float32)
        if not np.isfinite(array).all():
            raise ModelError(
                f"{self.path}: {name} contains numbers that are not finite"
            )
        return array

    def raw(self, name):
        """Returns an array as stored. It is neither checked nor marked as used."""
        if name not in self._arrays:
            raise ModelError(f"{self.path}: the array {name} is missing")
        return self._arrays[name]

    def check_all_used(self, reason="Models that contain it cannot be imported"):
        """Rejects arrays of parts that this package lacks, which nothing has used."""
        if self._unused:
            raise ModelError(
                f"{self.path}: unexpected array {min(self._unused)!r:.80}. {reason}"
            )


def read_npz(path, text=None, max_text_bytes=0):
    """Returns the arrays of an `.npz` file, by name.

    All are floats, except `text`, an int8 array of at most `max_text_bytes` bytes.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        _check_members(members, path.stat().st_size)
        for member in members:
            if member.filename == f"{text}.npy" and member.file_size > max_text_bytes:
                raise ModelError(
                    f"{text} must have at most {max_text_bytes:,} bytes. "
                    f"Received: {member.file_size:,}"
                )
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        for name, array in arrays.items():
            kinds = ("int8",) if name == text else ("float32", "float16")
            # NumPy returns the bytes of a member that is no array.
            kind = str(array.dtype) if isinstance(array, np.ndarray) else "bytes"
            if kind not in kinds:
                raise ModelError(
                    f"{name} must be {' or '.join(kinds)}. Received: {kind:.80}"
                )
        return arrays
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    # Reading a damaged archive or header raises exceptions of many types.
    except Exception as error:
        raise ModelError(f"{path}: cannot be read: {shorten(error)}") from None


def _check_members(members, size):
    """Checks the members of an archive of `size` bytes before they are read."""
    total = sum(member.file_size for member in members)
    limit = min(size, _MAX_BYTES)
    if total > limit:
        raise ModelError(
            f"its arrays have {total:,} bytes, but at most {limit:,} are allowed. "
            "Arrays must not be compressed"
        )
    # The suffix is not a part of an array's name.
    names = [member.filename.removesuffix(".npy") for member in members]
    if len(set(names)) < len(names):
        raise ModelError("contains an array twice")


def read_safetensors(path):
    """Returns the arrays of a safetensors file, by name, and the file's metadata.

    The arrays are views of the mapped file, so only the parts of the file that are in
    use need memory. While the arrays are in use, the file must not change.
    """
    require_regular([path], ModelError)
    try:
        content = np.memmap(path, "uint8", "r")
        start = 8 + int.from_bytes(content[:8], "little")
        if start > _MAX_HEADER_BYTES:
            raise ValueError(
                f"its header ends at byte {start:,}, but at most "
                f"{_MAX_HEADER_BYTES:,} are allowed"
            )
        header = json.loads(content[8:start].tobytes())
        metadata, arrays = dict(header.pop("__metadata__", {})), {}
        for name, entry in header.items():
            if entry["dtype"] not in _SAFETENSORS_TYPES:
                raise ModelError(
                    f"{path}: {name!r:.80} must be F32, F16 or BF16. "
                    f"Received: {entry['dtype']!s:.80}"
                )
            first, last = entry["data_offsets"]
            # A negative offset would count from the end.
            values = content[start + max(first, 0) : start + last]
            values = values.view(_SAFETENSORS_TYPES[entry["dtype"]])
            arrays[name] = values.reshape(entry["shape"])
        # Arrays that share bytes could have any total size.
        if sum(each.nbytes for each in arrays.values()) != len(content) - start:
            raise ValueError("its arrays overlap or leave bytes unused")
        return arrays, metadata
    except ModelError:
        raise
    # Reading a damaged file raises exceptions of many types.
    except Exception as error:
        raise ModelError(f"{path}: not a safetensors file: {shorten(error)}") from None


def require_torch(name):
    """Requires that torch is installed, which reads the `.bin` file of a model."""
    if importlib.util.find_spec("torch") is None:
        raise ModelError(
            f"{name}: its weights are a .bin file, which torch reads. Run "
            "`pip install torch`, or convert the file to safetensors"
        )


def read_torch(path):
    """Returns the arrays of a `pytorch_model.bin`, without running its code."""
    require_regular([path], ModelError)
    size = path.stat().st_size
    require_torch(path)
    import torch

    try:
        is_zip = zipfile.is_zipfile(path)
        if is_zip:
            with zipfile.ZipFile(path) as archive:
                _check_members(archive.infolist(), size)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
        _check_tensors(state, size)
        return {name: _torch_array(tensor) for name, tensor in state.items()}
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    # The restricted unpickler raises exceptions of any type.
    except Exception as error:
        reason = " ".join(str(error).split()).split(". ")[0]
        raise ModelError(f"{path}: rejected by PyTorch: {reason:.200}") from None


def _torch_array(tensor):
    """Converts a tensor to an array: float16, bfloat16, or else float32."""
    import torch

    # A parameter requires gradients, and `Tensor.numpy` refuses these.
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        # `Tensor.numpy` does not support bfloat16.
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return (tensor if tensor.dtype == torch.float16 else tensor.float()).numpy()


def _check_tensors(state, size):
    """Checks the names and sizes of the tensors in a file of `size` bytes."""
    if not all(isinstance(name, str) for name in state):
        raise ModelError("the names of its arrays must be strings")
    total = sum(tensor.nelement() * tensor.element_size() for tensor in state.values())
    if total > _MAX_NAMES * size:
        raise ModelError(
            f"its arrays have {total:,} bytes, more than {_MAX_NAMES} times the file's "
            f"size of {size:,} bytes"
        )
