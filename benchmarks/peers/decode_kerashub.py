"""Benchmark system: KerasHub's layers in the sizes of `workload.settings("base")`.

The weights are random, and the search is KerasHub's `BeamSampler`. The KV caches are
passed to the decoder as in KerasHub's sequence-to-sequence models. decoding.py starts
the system, and `interleaved` sends it turns.
"""

import sys

import interleaved
import keras_hub
import numpy as np
import tensorflow as tf
import workload
from keras import ops

fixed_length, compiler = int(sys.argv[1]), sys.argv[2]
tf.config.threading.set_intra_op_parallelism_threads(interleaved.THREADS)
tf.config.threading.set_inter_op_parallelism_threads(interleaved.THREADS)
settings = workload.settings("base")
num_layers, num_heads = settings["num_layers"], settings["num_heads"]
width, head_dim = settings["d_model"], settings["key_dim"]
common = {"intermediate_dim": settings["d_ff"], "num_heads": num_heads}
embedding = keras_hub.layers.TokenAndPositionEmbedding(workload.VOCABULARY, 256, width)
encoder = [keras_hub.layers.TransformerEncoder(**common) for _ in range(num_layers)]
decoder = [keras_hub.layers.TransformerDecoder(**common) for _ in range(num_layers)]
sampler = keras_hub.samplers.BeamSampler(num_beams=4)
START_ID = 2


def decode(ids, index, self_cache, cross_cache, cross_index, encoded, mask):
    """Returns logits and the caches extended by `ids`.

    With `cross_index=0`, the keys and values of the source are also computed. With
    `cross_index=None`, they are read from `cross_cache`.
    """
    y = embedding(ids, start_index=index)
    self_caches, cross_caches = [], []
    for number, layer in enumerate(decoder):
        y, self_layer, cross_layer = layer(
            y,
            encoded,
            encoder_padding_mask=mask,
            self_attention_cache=self_cache[:, number],
            self_attention_cache_update_index=index,
            cross_attention_cache=cross_cache[:, number],
            cross_attention_cache_update_index=cross_index,
        )
        self_caches.append(self_layer)
        cross_caches.append(cross_layer)
    logits = embedding.token_embedding(y, reverse=True)
    if cross_index is not None:
        cross_cache = ops.stack(cross_caches, axis=1)
    return logits, ops.stack(self_caches, axis=1), cross_cache


def next_token(prompt, cache, index):
    self_cache, cross_cache, encoded, mask = cache
    ids = ops.slice(prompt, [0, index - 1], [ops.shape(prompt)[0], 1])
    logits, self_cache, _ = decode(
        ids, index - 1, self_cache, cross_cache, None, encoded, mask
    )
    return logits[:, 0], None, (self_cache, cross_cache, encoded, mask)


def empty_cache(batch, length):
    return tf.zeros([batch, num_layers, 2, length, num_heads, head_dim])


@tf.function(
    input_signature=[tf.TensorSpec([None, None], tf.int32)],
    jit_compile=compiler == "xla",
)
def translate(source_ids):
    batch, source_length = tf.unstack(tf.shape(source_ids))
    mask = source_ids != 0
    encoded = embedding(source_ids)
    for layer in encoder:
        encoded = layer(encoded, padding_mask=mask)
    prompt = tf.pad(tf.fill([batch, 1], START_ID), [[0, 0], [0, fixed_length]])
    # One pass over the prompt computes the keys and values of the source.
    _, self_cache, cross_cache = decode(
        prompt,
        index=0,
        self_cache=empty_cache(batch, fixed_length + 1),
        cross_cache=empty_cache(batch, source_length),
        cross_index=0,
        encoded=encoded,
        mask=mask,
    )
    cache = (self_cache, cross_cache, encoded, mask)
    prompt.set_shape([None, fixed_length + 1])
    return sampler(next_token, prompt, cache=cache, index=1)[:, 1:]


def ids_turn(path, batch):
    rows = np.load(path)
    tokens = 0
    for start in range(0, len(rows), batch):
        tokens += translate(tf.constant(rows[start : start + batch])).numpy().size
    return tokens, {}


interleaved.serve(lambda path, batch: interleaved.timed(ids_turn, path, batch))
