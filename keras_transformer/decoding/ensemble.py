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

    Examples:
        >>> sizes = {"num_layers": 1, "d_model": 8, "d_ff": 8, "num_heads": 2}
        >>> ensemble = kt.Ensemble([kt.Transformer(10, **sizes) for _ in range(2)])
        >>> source_ids = keras.ops.convert_to_tensor([[4, 5, 3]])
        >>> target_ids = keras.ops.convert_to_tensor([[2, 6]])
        >>> inputs = {"source_ids": source_ids, "target_ids": target_ids}
        >>> print(ensemble(inputs).shape)
        (1, 2, 10)
    """

    def __init__(self, models):
        names = "vocabulary_size", "source_vocabulary_size", "output_size", "pad_id"
        found = {name: [getattr(model, name) for model in models] for name in names}
        if any(len(set(values)) != 1 for values in found.values()):
            raise ValueError(
                "`models` must not be empty, and all must have the same number of ids "
                f"and the same padding id. Received: {found}."
            )
        self.models = tuple(models)
        self.vocabulary_size = models[0].vocabulary_size
        self.source_vocabulary_size = models[0].source_vocabulary_size
        self.output_size = models[0].output_size
        self.num_outputs = models[0].num_outputs
        self.pad_id = models[0].pad_id
        limits = [model.position_limit for model in models]
        limits = [limit for limit in limits if limit is not None]
        self.position_limit = min(limits, default=None)

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
    """Decoder of an `Ensemble`, made of the `IncrementalDecoder` of each model."""

    returns_log_probs = False
    added_scores = None

    def __init__(self, decoders):
        self._decoders = decoders

    def begin(self, source_ids, beam_size=1, max_length=None):
        """Returns a tuple of caches and a tuple of contexts, one per decoder."""
        sizes = beam_size, max_length
        pairs = [decoder.begin(source_ids, *sizes) for decoder in self._decoders]
        return tuple(zip(*pairs, strict=True))

    def step(self, ids, cache, context, index, *attention):
        """Returns logits `[rows, num_outputs]` and the updated caches."""
        pairs = [
            decoder.step(ids, *own, index, *attention)
            for decoder, *own in zip(self._decoders, cache, context, strict=True)
        ]
        logits, caches = zip(*pairs, strict=True)
        return _log_mean(logits), caches

    def reorder(self, cache, parents):
        pairs = zip(self._decoders, cache, strict=True)
        return tuple(decoder.reorder(own, parents) for decoder, own in pairs)

    def compact(self, cache):
        pairs = zip(self._decoders, cache, strict=True)
        return tuple(decoder.compact(own) for decoder, own in pairs)

    def grow(self, cache):
        pairs = zip(self._decoders, cache, strict=True)
        return tuple(decoder.grow(own) for decoder, own in pairs)


def _log_mean(logits):
    """Returns the logarithm of the mean probabilities, shaped like each of `logits`."""
    log_probs = ops.stack([ops.log_softmax(each, axis=-1) for each in logits])
    return ops.logsumexp(log_probs, axis=0) - math.log(len(logits))
