"""Ensembles, which decode with the mean probabilities of several models."""

import math

from keras import ops


class Ensemble:
    """Ensemble of models with the same vocabulary.

    Searches and `Translator` accept it in place of a `Transformer`. Its logits are the
    logarithm of the models' mean probabilities.

    Args:
        models: List of at least one `Transformer`.

    Raises:
        ValueError: If `models` is empty, or the vocabularies differ in size or in
            their padding id.
    """

    def __init__(self, models):
        sizes = [model.vocabulary_size for model in models]
        source_sizes = [model.source_vocabulary_size for model in models]
        outputs = [model.output_size for model in models]
        if len(set(zip(source_sizes, sizes, outputs, strict=True))) != 1:
            raise ValueError(
                "`models` must not be empty, and all must have the same number of ids. "
                f"Received: vocabulary sizes {sizes}, source vocabulary sizes "
                f"{source_sizes}, output sizes {outputs}."
            )
        pad_ids = [model.pad_id for model in models]
        if len(set(pad_ids)) != 1:
            raise ValueError(
                f"`models` must have the same padding id. Received: {pad_ids}."
            )
        self.pad_id = pad_ids[0]
        self.models = tuple(models)
        self.vocabulary_size = sizes[0]
        self.source_vocabulary_size = source_sizes[0]
        self.output_size = models[0].output_size
        self.num_outputs = models[0].num_outputs
        # Only models with learned positions limit the length.
        limits = [model.max_length for model in models if model.positions == "learned"]
        self.positions = "learned" if limits else "sinusoidal"
        self.max_length = min(limits, default=None)

    def __call__(self, inputs, training=None):
        """Returns logits `[batch, target_length, num_outputs]`, like `Transformer`."""
        return _log_mean([model(inputs, training=training) for model in self.models])


def build_models(model):
    """Builds a `Transformer`, or the models of an `Ensemble`, unless they are built.

    This is necessary because a search reads the weights before it calls any layer.
    """
    for each in getattr(model, "models", (model,)):
        if not getattr(each, "built", True):  # other kinds of models need no build
            each.build({"source_ids": (None, None), "target_ids": (None, None)})


class EnsembleDecoder:
    """Decoder of an `Ensemble`.

    Args:
        decoders: List of `IncrementalDecoder`, one per model.
    """

    returns_log_probs = False

    def __init__(self, decoders):
        self._decoders = decoders

    def begin(self, source_ids, beam_size=1, max_length=None):
        """Returns a tuple of caches and a tuple of contexts, one per decoder."""
        pairs = [
            decoder.begin(source_ids, beam_size, max_length)
            for decoder in self._decoders
        ]
        return tuple(zip(*pairs, strict=True))

    def step(self, ids, cache, context, index):
        """Returns logits `[rows, num_outputs]` and the updated caches."""
        pairs = [
            decoder.step(ids, *own, index)
            for decoder, *own in zip(self._decoders, cache, context, strict=True)
        ]
        logits, caches = zip(*pairs, strict=True)
        return _log_mean(logits), caches

    def reorder(self, cache, parents):
        """Reorders the caches after hypotheses were replaced within their beam."""
        return tuple(
            decoder.reorder(own, parents)
            for decoder, own in zip(self._decoders, cache, strict=True)
        )

    def compact(self, cache):
        """Compacts the caches (see `decoding.cache.compact`)."""
        return tuple(
            decoder.compact(own)
            for decoder, own in zip(self._decoders, cache, strict=True)
        )


def _log_mean(logits):
    """Returns the logarithm of the mean probabilities, shaped like each of `logits`."""
    log_probs = ops.stack([ops.log_softmax(each, axis=-1) for each in logits])
    return ops.logsumexp(log_probs, axis=0) - math.log(len(logits))
