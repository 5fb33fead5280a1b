"""`FusedAdam` against Keras's Adam and PyTorch's AdamW."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import training

SHAPES = [(5, 7), (3,), ()]


def trained(cls, sparse, steps=20, **kwargs):
    """Returns variables and slots after steps on random gradients.

    The first variable's gradient is made of slices. If `sparse`, the optimizer gets it
    as `IndexedSlices`. Otherwise, it gets the dense sum.
    """
    rng = np.random.default_rng(1)
    variables = [
        keras.Variable(rng.normal(size=shape), dtype="float32") for shape in SHAPES
    ]
    schedule = training.InverseSquareRoot(0.05, 5)
    options = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9, **kwargs}
    optimizer = cls(schedule, **options)
    optimizer.build(variables)

    @tf.function
    def step(gradients):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for _ in range(steps):
        gradients = [
            tf.constant(rng.normal(size=shape), tf.float32) for shape in SHAPES
        ]
        # Row 1 occurs twice: its slices must be added.
        rows = tf.constant([1, 4, 1])
        gradients[0] = tf.IndexedSlices(gradients[0][:3], rows, tf.constant([5, 7]))
        if not sparse:
            # Keras's Adam would square each slice of a row separately.
            gradients[0] = tf.convert_to_tensor(gradients[0])
        step(gradients)
    results = (*variables, *optimizer.variables)
    return [np.asarray(variable) for variable in results]


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"epsilon": 0.1},
        {"weight_decay": 0.1},
        {"global_clipnorm": 0.5},
        {"use_ema": True},
        {"amsgrad": True},
        {"gradient_accumulation_steps": 2},
    ],
)
def test_fused_adam_matches_keras(kwargs):
    assert_close(
        trained(training.FusedAdam, sparse=False, **kwargs),
        trained(keras.optimizers.Adam, sparse=False, **kwargs),
    )


def test_fused_adam_adds_slices_of_a_row():
    assert_close(
        trained(training.FusedAdam, sparse=True),
        trained(keras.optimizers.Adam, sparse=False),
    )


def assert_close(found, expected):
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-5, atol=1e-6)


def test_fused_adam_config_round_trip():
    optimizer = training.FusedAdam(0.1, 0.8, 0.9, 1e-5)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, training.FusedAdam)
    assert again.get_config() == optimizer.get_config()


@pytest.mark.backends
def test_fused_adam_with_weight_decay_matches_adamw_of_pytorch():
    import torch

    rng = np.random.default_rng(4)
    start = [rng.normal(size=shape).astype("float32") for shape in ((4, 3), (3,))]
    gradients = [[rng.normal(size=x.shape).astype("float32") for x in start]] * 3
    variables = [keras.Variable(value) for value in start]
    optimizer = training.FusedAdam(0.01, beta_2=0.98, epsilon=1e-9, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_list=variables[1:])
    optimizer.build(variables)
    parameters = [torch.nn.Parameter(torch.tensor(value)) for value in start]
    groups = [
        {"params": parameters[:1], "weight_decay": 0.1},
        {"params": parameters[1:], "weight_decay": 0.0},
    ]
    expected = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    for step_gradients in gradients:
        optimizer.apply_gradients(
            zip(map(tf.constant, step_gradients), variables, strict=True)
        )
        for parameter, gradient in zip(parameters, step_gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        expected.step()
    for variable, parameter in zip(variables, parameters, strict=True):
        np.testing.assert_allclose(variable.numpy(), parameter.detach(), rtol=1e-5)
