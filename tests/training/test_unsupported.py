"""`TrainingModel` raises an error for losses and formats that it does not support."""

import keras
import pytest
from training_samples import batch, tiny_training_model

import keras_transformer as kt
from keras_transformer import training


@pytest.mark.parametrize("name", ["loss", "metrics", "weighted_metrics"])
def test_compile_rejects_losses_and_metrics(name):
    model = tiny_training_model()
    with pytest.raises(ValueError, match=f"its own loss and metrics.*: {name}"):
        model.compile("adam", **{name: ["mse"]})


def add_regularizer(transformer):
    for layer in transformer.encoder.layers:
        layer.feed_forward.inner_dense.kernel_regularizer = keras.regularizers.L2(1.0)


def add_layer_loss(transformer):
    layer = transformer.encoder.layers[0]
    call = layer.call

    def call_with_loss(x, *args, **kwargs):
        layer.add_loss(keras.ops.sum(x))
        return call(x, *args, **kwargs)

    layer.call = call_with_loss


@pytest.mark.parametrize("add", [add_regularizer, add_layer_loss])
@pytest.mark.parametrize("parts", [1, 2])
def test_fit_rejects_losses_of_the_transformer(add, parts):
    transformer = kt.Transformer(23, num_layers=1, d_model=12, d_ff=20, num_heads=2)
    add(transformer)
    model = training.TrainingModel(transformer, gradient_accumulation_steps=parts)
    model.compile("adam")
    with pytest.raises(ValueError, match="does not support regularizers or `add_loss`"):
        model.fit(*batch(1), verbose=0)


def test_saving_names_the_alternatives(tmp_path):
    model = tiny_training_model()
    with pytest.raises(NotImplementedError, match="Save its `transformer`, or save"):
        model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")


def test_fit_rejects_a_model_of_which_everything_is_frozen():
    model = tiny_training_model()
    model.transformer.trainable = False
    with pytest.raises(ValueError, match=r"all of its layers are frozen. Set `train"):
        model.train_step(batch(1))


def test_fit_rejects_inputs_that_are_no_dict():
    inputs, labels = batch(1)
    with pytest.raises(ValueError, match=r"must be a dict .*Received: list\.$"):
        tiny_training_model().train_step((list(inputs.values()), labels))
