"""The training step of a `Transformer` as a `keras.Model` for `model.fit`."""

import keras
import tensorflow as tf

from keras_transformer.training import guard
from keras_transformer.training.metrics import Perplexity
from keras_transformer.training.metrics import TokenAccuracy
from keras_transformer.training.metrics import _TokenMean
from keras_transformer.training.projected_loss import projected_loss
from keras_transformer.training.replicas import global_mean
from keras_transformer.training.replicas import global_sum
from keras_transformer.training.replicas import num_replicas

# Tokens whose logits are computed at a time: many enough to fill a GPU.
GPU_CHUNK_TOKENS = 8192


class _GlobalSum(keras.metrics.Sum):
    """A sum that every replica knows: one worker can read it without the others."""

    def add_variable(self, *args, **kwargs):
        return super().add_variable(*args, aggregation="only_first_replica", **kwargs)


class TrainingModel(keras.Model):
    """Trains a `Transformer` with `fit`; the weights are the transformer's own.

    Plain `transformer.compile(loss=SmoothedCrossEntropy(), ...)` computes the same
    updates. This step is faster and smaller, since logits exist for some tokens at a
    time only and serve loss, gradient, perplexity and accuracy in one pass, and it can
    accumulate gradients: each batch is cut along its rows into
    `gradient_accumulation_steps` times `parallel_parts` parts, of which
    `parallel_parts` are computed at a time. They make one update, normalised by the
    number of target tokens in the whole global batch.

    A step with a loss or gradient that is not finite, or without a target token,
    updates nothing and counts in no metric; `last_fault` tells of it.

    Args:
        transformer: The model to train.
        label_smoothing: Share of the probability that is spread, in [0, 1).
        gradient_accumulation_steps: Parts of a batch, one after the other: more of
            them need less memory.
        parallel_parts: Parts of each of these, side by side. On a CPU a core for each
            is busier than all of them with one part's operations; see `use_threads`.
        clip_norm: Gradients of the whole global batch are scaled down to this norm,
            all variables together, where theirs is larger. None: never.
        max_gradient_norm: Where theirs is larger than this, before it is scaled down,
            the step updates nothing. None: any finite one will do.
        guided_alignment: A `GuidedAlignment`, whose loss is added to the tokens', in
            what `fit` shows too. None: none.
    """

    def __init__(
        self,
        transformer,
        label_smoothing=0.1,
        gradient_accumulation_steps=1,
        clip_norm=None,
        max_gradient_norm=None,
        parallel_parts=1,
        guided_alignment=None,
        **kwargs,
    ):
        super().__init__(dtype=transformer.dtype_policy, **kwargs)
        self.transformer = transformer
        self.label_smoothing = label_smoothing
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.parallel_parts = parallel_parts
        self.clip_norm = clip_norm
        self.max_gradient_norm = max_gradient_norm
        self.guided_alignment = guided_alignment
        # Of the last step: a key of guard.REASONS, or guard.OK.
        self.last_fault = self.add_weight(
            shape=(),
            initializer="zeros",
            dtype="int32",
            trainable=False,
            aggregation="only_first_replica",
            name="last_fault",
        )
        self.loss_metric = _TokenMean(name="loss")
        self.perplexity_metric = Perplexity()
        self.accuracy_metric = TokenAccuracy()
        # Not among `metrics`: fit never starts it anew. Float32 ends at 2^24 tokens.
        self.token_counter = _GlobalSum(name="tokens", dtype="float64")

    @property
    def metrics(self):
        return [self.loss_metric, self.perplexity_metric, self.accuracy_metric]

    def build(self, inputs_shape):
        if not self.transformer.built:
            self.transformer.build(inputs_shape)

    def call(self, inputs, training=None):
        return self.transformer(inputs, training=training)

    def train_step(self, data):
        """One update from a batch.

        Args:
            data: `({"source_ids", "target_ids"}, labels)`, see `Transformer.call`.

        Returns:
            The metrics since they were last reset.
        """
        inputs, labels = data
        # The step calls the transformer's parts, so that nothing else builds it.
        self.build({name: ids.shape for name, ids in inputs.items()})
        all_tokens = global_sum(self._num_tokens(labels))
        scale = 1.0 / tf.maximum(all_tokens, 1.0)
        parts = self.gradient_accumulation_steps * self.parallel_parts
        if parts == 1:
            gradients, sums = self._gradients(inputs, labels, scale)
        else:
            gradients, sums = self._gradients_in_parts(inputs, labels, scale, parts)
        fault = self._apply(gradients, sums[0], all_tokens)
        self.last_fault.assign(fault)
        all_tokens, *sums = (
            tf.where(tf.equal(fault, guard.OK), value, 0.0)
            for value in (all_tokens, *sums)
        )
        self.token_counter.update_state(all_tokens)
        return self._update_metrics(sums, all_tokens)

    def test_step(self, data):
        """Metrics of a batch, without dropout."""
        inputs, labels = data
        sums = self._sums(inputs, labels, training=False)
        return self._update_metrics(sums, global_sum(self._num_tokens(labels)))

    def _num_tokens(self, labels):
        return tf.reduce_sum(
            tf.cast(tf.not_equal(labels, self.transformer.pad_id), tf.float32)
        )

    def _gradients(self, inputs, labels, scale):
        variables = [variable.value for variable in self.trainable_variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            sums = self._sums(inputs, labels, training=True)
            loss = self.optimizer.scale_loss(sums[0] * scale)
        return tape.gradient(loss, variables, unconnected_gradients="zero"), sums

    def _gradients_in_parts(self, inputs, labels, scale, parts):
        # Rows of padding make the parts equal: XLA wants shapes that stay.
        missing = tf.math.floormod(-tf.shape(labels)[0], parts)

        def cut(ids):
            pad_id = tf.cast(self.transformer.pad_id, ids.dtype)
            ids = tf.pad(ids, [[0, missing], [0, 0]], constant_values=pad_id)
            return tf.reshape(ids, [parts, -1, tf.shape(ids)[1]])

        inputs, labels = tf.nest.map_structure(cut, (inputs, labels))

        def body(index, gradients, sums):
            part_inputs = {name: ids[index] for name, ids in inputs.items()}
            new, new_sums = self._gradients(part_inputs, labels[index], scale)
            gradients = [
                total + tf.convert_to_tensor(gradient)
                for total, gradient in zip(gradients, new, strict=True)
            ]
            sums = [total + value for total, value in zip(sums, new_sums, strict=True)]
            return index + 1, gradients, sums

        zeros = [tf.zeros(variable.shape) for variable in self.trainable_variables]
        sums = [tf.constant(0.0)] * 3
        _, gradients, sums = tf.while_loop(
            lambda index, *_: index < parts,
            body,
            (0, zeros, sums),
            parallel_iterations=self.parallel_parts,
        )
        return gradients, sums

    def _apply(self, gradients, loss_sum, all_tokens):
        """Updates the weights unless something is wrong; returns what."""
        optimizer, variables = self.optimizer, self.trainable_variables
        scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        loss_scale = None
        if scaled:
            loss_scale = tf.convert_to_tensor(
                optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
            )
        # Not finite if any of them is not; half as dear as a norm.
        total = tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])
        too_large = False
        if self.clip_norm is not None or self.max_gradient_norm is not None:
            # The optimizer will sum over the replicas: each gets the mean.
            gradients = [global_mean(gradient) for gradient in gradients]
            norm = tf.linalg.global_norm(gradients) * num_replicas()
            if loss_scale is not None:
                norm /= loss_scale
            if self.max_gradient_norm is not None:
                # An overflow is the optimizer's to answer.
                too_large = tf.math.is_finite(norm) & (norm > self.max_gradient_norm)
            if self.clip_norm is not None:
                factor = tf.minimum(1.0, self.clip_norm / tf.maximum(norm, 1e-12))
                gradients = [gradient * factor for gradient in gradients]
        fault = guard.fault_of(all_tokens, loss_sum, total, loss_scale, too_large)
        if not scaled:
            condition = tf.equal(fault, guard.OK)
            guard.apply_if(condition, optimizer, gradients, variables)
            return fault
        # Keras leaves the update out by itself, but asks the first replica only.
        overflows = global_sum(tf.cast(~tf.math.is_finite(total), tf.float32)) > 0
        bad = overflows | tf.not_equal(fault, guard.OK)
        first = gradients[0] + tf.where(bad, float("nan"), 0.0)
        optimizer.apply_gradients(zip([first, *gradients[1:]], variables, strict=True))
        return fault

    def _sums(self, inputs, labels, training):
        """Sums over a batch's tokens: the loss, nll, number of correct ones."""
        vectors, scores = self._decoder_output(inputs, training)
        # [batch, target_length, d_model] to one row a token
        vectors = tf.reshape(vectors, [-1, vectors.shape[-1]])
        weights = tf.cast(tf.not_equal(labels, self.transformer.pad_id), tf.float32)
        sums = projected_loss(
            tf.cast(vectors, tf.float32),
            tf.convert_to_tensor(self.transformer.token_embedding.output_embeddings()),
            tf.reshape(tf.cast(labels, tf.int32), [-1]),
            tf.reshape(weights, [-1]),
            self.label_smoothing,
            self._chunk_tokens(),
        )
        loss, nll, correct = tf.unstack(sums)
        if self.guided_alignment is not None:
            loss += self.guided_alignment.loss(scores, inputs, weights)
        return [loss, nll, correct]

    def _decoder_output(self, inputs, training):
        """The decoder's output and, where it is guided, a layer's scores."""
        guided = self.guided_alignment
        if guided is None:
            return self.transformer.decoder_output(inputs, training=training), None
        output, scores = self.transformer.decoder_output(
            inputs, training=training, return_attention_scores=True
        )
        _, cross_scores = scores[guided.layer_of(self.transformer)]
        return output, cross_scores

    def _chunk_tokens(self):
        if tf.config.list_physical_devices("GPU"):
            return GPU_CHUNK_TOKENS
        # Few enough for a processor's cache, but the wider the rows of the embeddings
        # that each chunk reads, the more.
        return 2 * self.transformer.d_model

    def _update_metrics(self, sums, all_tokens):
        # Each replica counts the global batch: a mean of replicas' means would not
        # weigh tokens.
        sums = tf.unstack(global_sum(tf.stack(sums)))
        for metric, total in zip(self.metrics, sums, strict=True):
            metric.update_sums(total, all_tokens)
        return {metric.name: metric.result() for metric in self.metrics}
