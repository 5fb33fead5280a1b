"""The batches of the training benchmarks: real text in a fixed order."""

import itertools
import os
import pathlib

import numpy as np

VOCABULARY = 8000
BATCH_TOKENS = 4096
SEED = 1
LABEL_SMOOTHING = 0.1
DROPOUT = 0.1
SIZES = {
    "tiny": {"num_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4},
    "base": {"num_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8},
}


def settings(size):
    """Returns the arguments of `Transformer` for a key of `SIZES`."""
    chosen = dict(SIZES[size])
    width = chosen["d_model"] // chosen["num_heads"]
    return {**chosen, "key_dim": width, "value_dim": width, "dropout": DROPOUT}


def data_folder(name):
    """Returns the path of a folder of `$KERAS_TRANSFORMER_DATA`."""
    root = os.environ.get("KERAS_TRANSFORMER_DATA")
    if not root:
        raise SystemExit(f"set KERAS_TRANSFORMER_DATA to the folder with {name}")
    return pathlib.Path(root) / name


def text_files():
    """Returns the paths of Multi30k's training text."""
    folder = data_folder("multi30k")
    return folder / "train.en.gz", folder / "train.de.gz"


def corpus(folder):
    """Returns the encoded corpus in `folder`, creating it if needed."""
    from keras_transformer import pipelines

    pairs = pipelines.TextFiles(*text_files())
    path = pathlib.Path(folder) / "tokenizer"
    if not path.is_dir():
        texts = (text for pair in pairs for text in pair)
        pipelines.train_tokenizer("bpe", texts, VOCABULARY).save(path)
    tokenizer = pipelines.load_tokenizer(path)
    return pipelines.encode_corpus(
        pairs, tokenizer, tokenizer, pathlib.Path(folder) / "ids"
    )


def dataset(folder):
    """Returns the batches as a `tf.data.Dataset`."""
    from keras_transformer import pipelines

    return pipelines.training_dataset(corpus(folder), BATCH_TOKENS, seed=SEED)


def padded_dataset(folder):
    """Like `dataset`, but padded to the buckets' shapes, which XLA compiles once."""
    import tensorflow as tf

    from keras_transformer.pipelines.batching import epoch_batches, epoch_order

    found = corpus(folder)
    buckets, leaf_of_pair = found.plan(BATCH_TOKENS)

    def generate():
        for epoch in itertools.count():
            order = epoch_order(buckets, leaf_of_pair, SEED, epoch)
            for indices, bucket in epoch_batches(buckets, *order):
                source_ids, *target = found.padded_batch(indices, buckets[bucket])
                target_ids, labels = target
                yield {"source_ids": source_ids, "target_ids": target_ids}, labels

    ids = tf.TensorSpec([None, None], tf.int32)
    signature = {"source_ids": ids, "target_ids": ids}, ids
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def save_batches(folder, count):
    """Writes the first batches as arrays, for systems without TensorFlow.

    Returns:
        List of (source lengths, target lengths), one pair per batch.
    """
    lengths = []
    arrays = {}
    for number, (inputs, labels) in enumerate(dataset(folder).take(count)):
        for side, ids in inputs.items():
            arrays[f"{side}_{number}"] = ids.numpy()
        arrays[f"labels_{number}"] = labels.numpy()
        lengths.append(
            tuple(
                np.count_nonzero(ids, axis=1)
                for ids in (inputs["source_ids"].numpy(), labels.numpy())
            )
        )
    np.savez(pathlib.Path(folder) / "batches.npz", **arrays)
    return lengths


def saved_batches(folder):
    """Returns the batches of `save_batches` as (source_ids, target_ids, labels)."""
    with np.load(pathlib.Path(folder) / "batches.npz") as stored:
        return [
            tuple(
                stored[f"{side}_{n}"] for side in ("source_ids", "target_ids", "labels")
            )
            for n in range(len(stored) // 3)
        ]
