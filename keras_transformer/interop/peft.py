"""Low-rank adapters as files of PEFT, Hugging Face's library.

The names and dimensions in the files are those of a model in Hugging Face's format, as
an import or `export --format huggingface` has them.
"""

import hashlib
import json
import logging
import math
import pathlib
from typing import Literal

from pydantic import BaseModel, PositiveFloat, PositiveInt
from safetensors.numpy import save_file

from keras_transformer.errors import ExportError, ModelError
from keras_transformer.files import replace_folder
from keras_transformer.interop.array_names import huggingface_names
from keras_transformer.interop.arrays import Arrays, read_safetensors
from keras_transformer.interop.supported import reject_quantized
from keras_transformer.interop.weights import (
    interleave,
    projections,
    sines_first,
    to_numpy,
)
from keras_transformer.untrusted import read_json

logger = logging.getLogger(__name__)

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_BASE = "base"  # key of the metadata: fingerprint of the kernels without adapters


class _Settings(BaseModel):
    """The part of PEFT's `LoraConfig` that `apply_adapters` needs, or cannot apply."""

    peft_type: Literal["LORA"]
    r: PositiveInt
    lora_alpha: PositiveInt | PositiveFloat
    use_rslora: bool = False
    use_dora: Literal[False] | None = None
    fan_in_fan_out: Literal[False] | None = None
    # With others, such as "pissa", PEFT changes the weights of the base.
    init_lora_weights: Literal[True, False, "gaussian"] = True
    bias: Literal["none"] = "none"
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}


def write_adapters(model, folder):
    """Writes the adapters of a model (see `add_adapters`) as a folder of PEFT."""
    arrays, base, targets = {}, hashlib.sha256(), set()
    for name, dense, axis in _projections(model):
        if not dense.lora_enabled:
            continue
        a, b = (to_numpy(each) for each in (dense.lora_kernel_a, dense.lora_kernel_b))
        a, b = (sines_first(a, 0), b) if axis == 0 else (a, sines_first(b))
        arrays[f"{name}lora_A.weight"] = a.T.copy()
        arrays[f"{name}lora_B.weight"] = b.T.copy()
        # `kernel` would include the adapter.
        base.update(to_numpy(dense._kernel))
        targets.add(name.split(".")[-2])
        rank, alpha = dense.lora_rank, dense.lora_alpha
    settings = {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(targets),
        "bias": "none",
        "inference_mode": True,
    }
    with replace_folder(folder) as temporary:
        metadata = {"format": "pt", _BASE: base.hexdigest()}
        save_file(arrays, temporary / _WEIGHTS, metadata)
        text = json.dumps(settings, indent=2)
        (temporary / _CONFIG).write_text(f"{text}\n")


def apply_adapters(model, folders):
    """Adds the products of adapters to a model's kernels, one folder after another.

    Args:
        model: A built `Transformer`.
        folders: Folders of `train` (`RUN/adapters`) or of PEFT.

    Raises:
        ModelError: If a folder does not contain adapters that fit the model.
    """
    try:
        reject_quantized(model)
    except ExportError as error:
        raise ModelError(f"adapters: {error}") from None
    kernels = {name: to_numpy(each.kernel) for name, each, _ in _projections(model)}
    for folder in map(pathlib.Path, folders):
        if not (folder / _CONFIG).is_file():
            raise ModelError(
                f"{folder}: contains no {_CONFIG}. The adapters of a run are in its "
                "folder `adapters`"
            )
        settings = read_json(folder / _CONFIG, _Settings, error=ModelError)
        if settings.rank_pattern or settings.alpha_pattern:
            raise ModelError(
                f"{folder / _CONFIG}: must have no rank_pattern and no alpha_pattern"
            )
        rank = settings.r
        scale = settings.lora_alpha / (math.sqrt(rank) if settings.use_rslora else rank)
        arrays, metadata = read_safetensors(folder / _WEIGHTS)
        arrays = Arrays(folder / _WEIGHTS, arrays)
        base = hashlib.sha256()
        for name, dense, axis in _projections(model):
            if f"{name}lora_A.weight" not in arrays:
                continue
            inputs, outputs = dense.kernel.shape
            a = arrays.take(f"{name}lora_A.weight", (rank, inputs)).T
            b = arrays.take(f"{name}lora_B.weight", (outputs, rank)).T
            a, b = (interleave(a, 0), b) if axis == 0 else (a, interleave(b))
            dense.kernel.assign(to_numpy(dense.kernel) + scale * (a @ b))
            base.update(kernels[name])
        arrays.check_all_used()
        if metadata.get(_BASE) not in (None, base.hexdigest()):
            logger.warning(
                "%s: these adapters were trained for a model with other weights", folder
            )


def _projections(model):
    """Yields PEFT's prefix, the `Dense` layer and its kernel's axis of the stream."""
    for side in ("encoder", "decoder"):
        for number, layer in enumerate(getattr(model, side).layers):
            for part, dense, axis in projections(layer):
                name = huggingface_names(side, number, part)[0]
                prefix = name.removesuffix("weight")
                yield f"base_model.model.{prefix}", dense, axis
