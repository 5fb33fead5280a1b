"""Low-rank adapters as files of PEFT, Hugging Face's library.

The names and dimensions in the files are those of a model in Hugging Face's format, as
an import or `export --format huggingface` has them.
"""

import hashlib
import json
import logging
import math
import pathlib
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt
from safetensors.numpy import save_file

from keras_transformer.errors import ExportError, ModelError
from keras_transformer.files import replace_folder
from keras_transformer.interop.array_names import huggingface_names
from keras_transformer.interop.arrays import Arrays, read_safetensors
from keras_transformer.interop.imported import check_settings
from keras_transformer.interop.supported import reject_quantized
from keras_transformer.interop.weights import (
    interleave,
    projections,
    sines_first,
    to_numpy,
)
from keras_transformer.untrusted import quote, read_json

logger = logging.getLogger(__name__)

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_BINARY = "adapter_model.bin"
_PREFIX = "base_model.model."
# Settings that no product of two matrices can replace. Unset, they are false or empty.
_UNSUPPORTED = (
    *("use_dora", "fan_in_fan_out", "bias", "lora_bias", "modules_to_save"),
    *("alora_invocation_tokens", "trainable_token_indices", "target_parameters"),
    *("layer_replication", "use_qalora", "use_bdlora", "arrow_config", "kasa_config"),
)
# Regular expressions that match a name fast: without groups, and with few `.*`.
_PATTERN = r"^\^?([\w|-]|\\?\.)*(\.\*([\w|-]|\\?\.)*){0,3}\$?$"
_BASE = "base"  # key of the metadata: fingerprint of the kernels without adapters


class _Settings(BaseModel):
    """The part of PEFT's `LoraConfig` that `apply_adapters` needs."""

    model_config = ConfigDict(strict=True)

    peft_type: Literal["LORA"]
    r: PositiveInt
    lora_alpha: PositiveInt | PositiveFloat
    use_rslora: bool = False
    # With others, such as "pissa", PEFT changes the weights of the base.
    init_lora_weights: Literal[True, False, "gaussian", "orthogonal", "eva"] = True
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    layers_to_transform: list[int] | int | None = None
    rank_pattern: dict[str, PositiveInt] | None = None
    alpha_pattern: (
        dict[Annotated[str, Field(pattern=_PATTERN)], PositiveInt | PositiveFloat]
        | None
    ) = None


def write_adapters(model, folder, base_name):
    """Writes the adapters of a model (see `add_adapters`) as a folder of PEFT.

    `base_name` is the path of the model without them.
    """
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
        "base_model_name_or_path": base_name,
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
        settings = _read_settings(folder)
        arrays, metadata = read_safetensors(folder / _WEIGHTS)
        arrays = Arrays(folder / _WEIGHTS, arrays)
        base = hashlib.sha256()
        for name, dense, axis in _projections(model):
            if f"{name}lora_A.weight" not in arrays:
                _check_untargeted(folder, settings, name)
                continue
            inputs, outputs = dense.kernel.shape
            rank = settings.r
            if settings.rank_pattern:
                rank = arrays.raw(f"{name}lora_A.weight").shape[0]
            a = arrays.take(f"{name}lora_A.weight", (rank, inputs)).T
            b = arrays.take(f"{name}lora_B.weight", (outputs, rank)).T
            a, b = (interleave(a, 0), b) if axis == 0 else (a, interleave(b))
            scale = _alpha(settings, name) / (
                math.sqrt(rank) if settings.use_rslora else rank
            )
            dense.kernel.assign(to_numpy(dense.kernel) + scale * (a @ b))
            base.update(kernels[name])
        arrays.check_all_used("Only adapters of the layers' projections are supported")
        if metadata.get(_BASE) not in (None, base.hexdigest()):
            logger.warning(
                "%s: these adapters were trained for a model with other weights", folder
            )


def _read_settings(folder):
    """Returns the settings of adapters, whose folder must have the arrays, too."""
    stored = read_json(folder / _CONFIG, dict[str, Any], error=ModelError)
    settings = check_settings(folder / _CONFIG, _Settings, stored)
    for name in _UNSUPPORTED:
        if (value := stored.get(name)) and value != "none":
            raise ModelError(
                f"{folder / _CONFIG}: adapters with {name} cannot be applied, only "
                "products that LoRA adds to projections of the layers. Received: "
                f"{name}={quote(value)}"
            )
    if not (folder / _WEIGHTS).exists() and (folder / _BINARY).exists():
        raise ModelError(
            f"{folder}: contains {_BINARY} in place of {_WEIGHTS}. Load the adapters "
            "with PEFT and save them with `save_pretrained`, which writes safetensors"
        )
    return settings


def _check_untargeted(folder, settings, name):
    """Checks that PEFT would not have adapted a projection without adapters."""
    targets = settings.target_modules
    is_subset = settings.layers_to_transform is not None or settings.exclude_modules
    if isinstance(targets, list) and not is_subset:
        name = name.removeprefix(_PREFIX).removesuffix(".")
        if any(f".{name}".endswith(f".{each}") for each in targets):
            raise ModelError(
                f"{folder}: these adapters are for a model with other layers, because "
                f"they have none for {name}"
            )


def _alpha(settings, name):
    """Returns alpha of a projection. The first pattern that matches decides, if any."""
    name = name.removeprefix(_PREFIX).removesuffix(".")
    for pattern, alpha in (settings.alpha_pattern or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", name):
            return alpha
    return settings.lora_alpha


def _projections(model):
    """Yields PEFT's prefix, the `Dense` layer and its kernel's axis of the stream."""
    for side in ("encoder", "decoder"):
        for number, layer in enumerate(getattr(model, side).layers):
            for part, dense, axis in projections(layer):
                name = huggingface_names(side, number, part)[0]
                prefix = name.removesuffix("weight")
                yield f"{_PREFIX}{prefix}", dense, axis
