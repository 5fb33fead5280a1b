"""The optimizer that a recipe chooses: PyTorch computes the same updates."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from phrases_run import small_recipe

from keras_transformer.runs.build import build_training_model
from keras_transformer.runs.train import train

TOKENIZER = SimpleNamespace(
    vocabulary_size=50, pad_id=0, num_outputs=None, num_symbols=lambda: None
)
STEPS = 3


def muon_recipe(*overrides):
    return small_recipe("training.optimizer=muon", *overrides)


def is_layer_matrix(variable):
    """Returns whether Muon should update a variable: a kernel of a layer."""
    return variable.path.endswith("/kernel") and len(variable.shape) == 2


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.backends
def test_muon_matches_pytorch(weight_decay):
    """PyTorch orthogonalizes in bfloat16, with a relative error of some percent."""
    import torch

    model = build_training_model(
        muon_recipe(
            "model.positions=learned",
            "model.max_length=20",
            "model.variations={tied_output: false, attention_bias: true}",
            f"training.weight_decay={weight_decay}",
            *("training.learning_rate=0.01", "training.warmup_steps=1"),
            *("training.cooldown_steps=0", "training.schedule=inverse_sqrt"),
        ),
        TOKENIZER,
    )
    rng = np.random.default_rng(5)
    variables = model.trainable_variables
    start = [variable.numpy() for variable in variables]
    parameters = [torch.nn.Parameter(torch.tensor(value)) for value in start]
    pairs = list(zip(variables, parameters, strict=True))
    matrices = [each for variable, each in pairs if is_layer_matrix(variable)]
    others = [each for variable, each in pairs if not is_layer_matrix(variable)]
    # Embeddings and learned positions are matrices that decay, but not Muon's.
    decaying = [each for each in others if each.dim() == 2]
    assert len(matrices) == 16 and len(decaying) == 4
    groups = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": [each for each in others if each.dim() < 2], "weight_decay": 0.0},
    ]
    muon = torch.optim.Muon(
        matrices,
        momentum=0.95,
        weight_decay=weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9)
    for step in range(1, STEPS + 1):
        for group in (*muon.param_groups, *adam.param_groups):
            group["lr"] = 0.01 * step**-0.5
        gradients = [rng.normal(size=each.shape).astype("float32") for each in start]
        model.optimizer.apply_gradients(
            zip(map(tf.constant, gradients), variables, strict=True)
        )
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        muon.step()
        adam.step()
    for (variable, parameter), before in zip(pairs, start, strict=True):
        change = variable.numpy() - before
        expected = parameter.detach().numpy() - before
        tolerance = 0.03 if is_layer_matrix(variable) else 1e-4
        error = np.linalg.norm(change - expected) / np.linalg.norm(expected)
        assert error < tolerance, (variable.path, error)


@pytest.mark.slow  # Three trainings. Adam's run resumes bit-identically by default.
def test_muon_run_resumes_bit_identically(tmp_path):
    settings = "training.validation_bleu=false", "training.average_checkpoints=1"
    for name, steps in (("cut", 2), ("cut", 4), ("whole", 4)):
        recipe = muon_recipe(f"training.steps={steps}", *settings)
        train(recipe, tmp_path / name, progress=False)
    cut, whole = (
        keras.saving.load_model(tmp_path / name / "model.keras").get_weights()
        for name in ("cut", "whole")
    )
    for weight, expected in zip(cut, whole, strict=True):
        np.testing.assert_array_equal(weight, expected)
