"""Several models that decode as one: the mean of their probabilities."""

import math

from keras import ops


class Ensemble:
    """Models of one vocabulary; what each step predicts is the mean of theirs.

    It has what `translate_ids`, `sample_ids`, `score_ids` and `Translator` need of a
    `Transformer`. Its logits are `log(mean of the models' probabilities)`.

    Args:
        models: `Transformer`s, at least one.

    Raises:
        ValueError: no model, or vocabularies of different sizes.
    """

    def __init__(self, models):
        sizes = [model.vocabulary_size for model in models]
        outputs = [model.output_size for model in models]
        if len(set(zip(sizes, outputs, strict=True))) != 1:
            raise ValueError(
                "`models` must be at least one, all with as many ids. "
                f"Received: vocabulary sizes {sizes}, output sizes {outputs}."
            )
        self.models = tuple(models)
        self.vocabulary_size = sizes[0]
        self.output_size = models[0].output_size
        self.num_outputs = models[0].num_outputs
        limits = [model.max_length for model in models if model.positions == "learned"]
        self.positions = "learned" if limits else "sinusoidal"
        self.max_length = min(limits, default=None)

    def __call__(self, inputs, training=None):
        """`[batch, target_length, num_outputs]`, as `Transformer.call`."""
        return _mean([model(inputs, training=training) for model in self.models])

    def init_cache(self, source_ids, max_length=None, beam_size=1):
        """A tuple of caches and a tuple of contexts, one for each model."""
        pairs = [
            model.init_cache(source_ids, max_length, beam_size) for model in self.models
        ]
        return tuple(zip(*pairs, strict=True))

    def decoding_kernels(self, blocks=False):
        """The models' `decoding_kernels`."""
        return tuple(model.decoding_kernels(blocks) for model in self.models)

    def decode_with_cache(self, target_ids, cache, context, start_index, kernels=None):
        """Logits and the longer caches, as `Transformer.decode_with_cache`."""
        kernels = kernels or (None,) * len(self.models)
        pairs = [
            model.decode_with_cache(target_ids, *one, start_index, its_kernels)
            for model, *one, its_kernels in zip(
                self.models, cache, context, kernels, strict=True
            )
        ]
        logits, caches = zip(*pairs, strict=True)
        return _mean(logits), caches

    def reorder_cache(self, cache, parents):
        """The caches after rows took the place of others of their sentence."""
        return tuple(
            model.reorder_cache(one, parents)
            for model, one in zip(self.models, cache, strict=True)
        )

    def settle_cache(self, cache):
        """The caches, put in order, as `Transformer.settle_cache`."""
        return tuple(
            model.settle_cache(one)
            for model, one in zip(self.models, cache, strict=True)
        )


def _mean(logits):
    """The logarithm of the mean of probabilities, shaped as each of `logits`."""
    log_probs = ops.stack([ops.log_softmax(each, axis=-1) for each in logits])
    return ops.logsumexp(log_probs, axis=0) - math.log(len(logits))
