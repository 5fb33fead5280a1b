"""Layers match PyTorch and KerasHub with the same weights.

They also work with Keras's LoRA and `Sequential`.
"""

import keras
import numpy as np
import pytest
from layer_checks import numpy, randomize
from small_transformers import built

import keras_transformer as kt
from keras_transformer.layers import DecoderLayer, Encoder, EncoderLayer

WIDTH, HEADS, INNER = 12, 3, 20
SIZES = {"num_heads": HEADS, "key_dim": WIDTH // HEADS, "d_ff": INNER, "dropout": 0.0}
GENERATOR = np.random.default_rng(11)
SOURCE = GENERATOR.normal(size=(2, 6, WIDTH)).astype("float32")
TARGET = GENERATOR.normal(size=(2, 5, WIDTH)).astype("float32")
# True for positions of SOURCE, False for padding.
MASK = np.array([[True] * 6, [True] * 4 + [False] * 2])
NORMALIZATIONS = pytest.mark.parametrize("normalization", ["post", "pre"])


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-5)


def build_layer(layer, *inputs):
    layer(*inputs)
    randomize(layer)
    return layer


# Names of a layer's sublayers in each library.
ATTENTIONS = {
    "torch": {"self_attention": "self_attn", "cross_attention": "multihead_attn"},
    "keras_hub": {
        "self_attention": "self_attention",
        "cross_attention": "cross_attention",
    },
}


def torch_state(layer, prefix=""):
    """Returns our layer's weights as the state dict of the `torch.nn` layer."""
    import torch

    state = {}

    def put(name, array):
        state[prefix + name] = torch.tensor(np.array(array))

    norms = [layer.self_attention_add_norm]
    for ours, theirs in ATTENTIONS["torch"].items():
        attention = getattr(layer, ours, None)
        if attention is None:
            continue
        kernels = [
            numpy(dense.kernel).T
            for dense in (
                attention.query_dense,
                attention.key_dense,
                attention.value_dense,
            )
        ]
        put(f"{theirs}.in_proj_weight", np.concatenate(kernels))
        put(f"{theirs}.in_proj_bias", np.zeros(3 * WIDTH, "float32"))
        put(f"{theirs}.out_proj.weight", numpy(attention.output_dense.kernel).T)
        put(f"{theirs}.out_proj.bias", np.zeros(WIDTH, "float32"))
        if ours == "cross_attention":
            norms.append(layer.cross_attention_add_norm)
    norms.append(layer.feed_forward_add_norm)
    for number, add_norm in enumerate(norms, 1):
        put(f"norm{number}.weight", numpy(add_norm.layer_norm.gamma))
        put(f"norm{number}.bias", numpy(add_norm.layer_norm.beta))
    feed_forward = layer.feed_forward
    for number, dense in enumerate(
        (feed_forward.inner_dense, feed_forward.outer_dense), 1
    ):
        put(f"linear{number}.weight", numpy(dense.kernel).T)
        put(f"linear{number}.bias", numpy(dense.bias))
    return state


def torch_options(normalization):
    return {
        "dim_feedforward": INNER,
        "dropout": 0.0,
        "layer_norm_eps": 1e-6,
        "batch_first": True,
        "norm_first": normalization == "pre",
    }


@NORMALIZATIONS
@pytest.mark.backends
def test_encoder_layer_matches_torch(normalization):
    import torch

    ours = build_layer(EncoderLayer(**SIZES, normalization=normalization), SOURCE)
    theirs = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, **torch_options(normalization)
    )
    theirs.load_state_dict(torch_state(ours))
    expected = theirs(torch.tensor(SOURCE), src_key_padding_mask=torch.tensor(~MASK))
    close(
        numpy(ours(SOURCE, attention_mask=MASK[:, None]))[MASK],
        expected.detach().numpy()[MASK],
    )


@NORMALIZATIONS
@pytest.mark.backends
def test_decoder_layer_matches_torch(normalization):
    import torch

    ours = build_layer(
        DecoderLayer(**SIZES, normalization=normalization), TARGET, SOURCE
    )
    theirs = torch.nn.TransformerDecoderLayer(
        WIDTH, HEADS, **torch_options(normalization)
    )
    theirs.load_state_dict(torch_state(ours))
    expected = theirs(
        torch.tensor(TARGET),
        torch.tensor(SOURCE),
        tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(5),
        memory_key_padding_mask=torch.tensor(~MASK),
    )
    close(numpy(ours(TARGET, SOURCE, source_mask=MASK)), expected.detach().numpy())


@pytest.mark.backends
def test_stacks_match_torch_transformer():
    """`torch.nn.Transformer` always has final norms, as our pre-norm stacks do."""
    import torch

    model = built(50, 2, WIDTH, INNER, HEADS, dropout=0.0, normalization="pre")
    randomize(model)
    theirs = torch.nn.Transformer(
        WIDTH,
        HEADS,
        num_encoder_layers=2,
        num_decoder_layers=2,
        **torch_options("pre"),
    )
    state = {}
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(stack.layers):
            state |= torch_state(layer, f"{name}.layers.{number}.")
        state[f"{name}.norm.weight"] = torch.tensor(numpy(stack.final_norm.gamma))
        state[f"{name}.norm.bias"] = torch.tensor(numpy(stack.final_norm.beta))
    theirs.load_state_dict(state)
    expected = theirs(
        torch.tensor(SOURCE),
        torch.tensor(TARGET),
        tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(5),
        src_key_padding_mask=torch.tensor(~MASK),
        memory_key_padding_mask=torch.tensor(~MASK),
    )
    encoded = model.encoder(SOURCE, source_mask=MASK)
    decoded = model.decoder(TARGET, encoded, source_mask=MASK)
    close(numpy(decoded), expected.detach().numpy())


def copy_into_keras_hub(ours, theirs):
    """Copies our layer's weights to KerasHub's. Biases that ours lacks become zero."""
    for weight in theirs.weights:
        # For example: transformer_encoder/self_attention_layer/query/kernel.
        _, part, *rest = weight.path.split("/")
        if rest[0] in ("query", "key", "value", "attention_output"):
            part = part.removesuffix("_layer")
            name = {"attention_output": "output"}.get(rest[0], rest[0])
            dense = getattr(getattr(ours, part), f"{name}_dense")
            value = numpy(dense.kernel) if rest[1] == "kernel" else np.zeros(1)
        elif part.endswith("_norm"):
            part = part.removesuffix("_layer_norm").removesuffix("_layer")
            part = part.replace("feedforward", "feed_forward")
            value = numpy(
                getattr(getattr(ours, f"{part}_add_norm").layer_norm, rest[0])
            )
        else:
            side = {"intermediate": "inner", "output": "outer"}[part.split("_")[1]]
            dense = getattr(ours.feed_forward, f"{side}_dense")
            value = numpy(getattr(dense, rest[0]))
        if value.size == 1:
            value = np.zeros(weight.shape)
        weight.assign(value.reshape(weight.shape))


def hub_options(normalization):
    return {
        "intermediate_dim": INNER,
        "num_heads": HEADS,
        "dropout": 0.0,
        "layer_norm_epsilon": 1e-6,
        "normalize_first": normalization == "pre",
    }


@NORMALIZATIONS
def test_encoder_layer_matches_keras_hub(normalization):
    keras_hub = pytest.importorskip("keras_hub")
    ours = build_layer(EncoderLayer(**SIZES, normalization=normalization), SOURCE)
    theirs = keras_hub.layers.TransformerEncoder(**hub_options(normalization))
    theirs(SOURCE)
    copy_into_keras_hub(ours, theirs)
    expected = numpy(theirs(SOURCE, padding_mask=MASK))
    close(numpy(ours(SOURCE, attention_mask=MASK[:, None]))[MASK], expected[MASK])


@NORMALIZATIONS
def test_decoder_layer_matches_keras_hub(normalization):
    keras_hub = pytest.importorskip("keras_hub")
    ours = build_layer(
        DecoderLayer(**SIZES, normalization=normalization), TARGET, SOURCE
    )
    theirs = keras_hub.layers.TransformerDecoder(**hub_options(normalization))
    theirs(TARGET, SOURCE)
    copy_into_keras_hub(ours, theirs)
    expected = numpy(theirs(TARGET, SOURCE, encoder_padding_mask=MASK))
    close(numpy(ours(TARGET, SOURCE, source_mask=MASK)), expected)


def test_embedding_matches_keras_hub():
    """KerasHub does not multiply by sqrt(d_model); the logits are the same."""
    keras_hub = pytest.importorskip("keras_hub")
    ids = np.array([[3, 1, 4], [1, 5, 0]])
    ours = build_layer(kt.layers.TokenEmbedding(9, WIDTH), ids)
    theirs = keras_hub.layers.ReversibleEmbedding(9, WIDTH)
    theirs.build()
    theirs.embeddings.assign(numpy(ours.embeddings))
    close(numpy(ours(ids)), numpy(theirs(ids)) * np.sqrt(WIDTH))
    close(numpy(ours(SOURCE, reverse=True)), numpy(theirs(SOURCE, reverse=True)))


def small_model(**options):
    return built(40, 1, d_model=16, d_ff=32, num_heads=2, dropout=0.0, **options)


IDS = {
    "source_ids": np.array([[5, 6, 7, 3], [8, 9, 3, 0]]),
    "target_ids": np.array([[2, 11, 12], [2, 13, 0]]),
}


def test_lora_trains_two_low_rank_matrices_per_projection():
    model = small_model()
    before = numpy(model(IDS))
    dense = model.encoder.layers[0].self_attention.query_dense
    kernel = numpy(dense.kernel)
    dense.enable_lora(rank=2)
    assert [tuple(weight.shape) for weight in dense.trainable_weights] == [
        (16, 2),
        (2, 16),
    ]
    # LoRA's product is zero before training.
    close(numpy(model(IDS)), before)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # A compiled step would have to be traced, which takes longer than two eager ones.
    model.compile("sgd", loss, run_eagerly=True)
    model.fit(IDS, np.array([[11, 12, 3], [13, 3, 0]]), epochs=2, verbose=0)
    np.testing.assert_array_equal(numpy(dense._kernel), kernel)
    assert np.abs(numpy(dense.kernel) - kernel).max() > 0


def test_layers_work_in_sequential():
    """Layers with one input work in `keras.Sequential`."""
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            kt.layers.TokenEmbedding(40, 16),
            kt.layers.PositionalEncoding(),
            Encoder(num_layers=2, num_heads=2, key_dim=8, d_ff=32, dropout=0.1),
            kt.layers.FeedForward(24),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3),
        ]
    )
    padded = np.array([[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]])
    found = numpy(model(padded))
    assert found.shape == (2, 3)
    # The mask of the embedding reaches all layers, so padding has no effect.
    close(found[:1], numpy(model(padded[:1, :3])))
