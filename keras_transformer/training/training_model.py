"""Training step of a `Transformer`, as a `keras.Model` for `model.fit`."""

import keras
import tensorflow as tf

from keras_transformer.errors import require_tensorflow
from keras_transformer.training import step_check
from keras_transformer.training.consistency import TokenDropout, consistency_loss
from keras_transformer.training.losses import replace_padding
from keras_transformer.training.metrics import Perplexity, TokenAccuracy, TokenMean
from keras_transformer.training.projected_loss import projected_loss
from keras_transformer.training.replicas import global_sum
from keras_transformer.training.step_check import CheckedUpdate

# Number of tokens whose logits are computed at a time, enough to use a GPU fully.
GPU_CHUNK_TOKENS = 8192


class _GlobalSum(keras.metrics.Sum):
    """`Sum` that is equal on all replicas, so that one worker can read it alone."""

    def add_variable(self, *args, **kwargs):
        return super().add_variable(*args, aggregation="only_first_replica", **kwargs)


class TrainingModel(keras.Model):
    """A `keras.Model` that trains the weights of a `Transformer` with `fit`.

    Plain `transformer.compile(loss=SmoothedCrossEntropy(), ...)` computes the same
    updates, unless the transformer has regularizers or other losses of its own. This
    class's training step is faster and needs less memory: logits exist only for some
    tokens at a time, and one pass computes loss, gradient, perplexity and accuracy.

    Each batch is divided along its rows into `gradient_accumulation_steps *
    parallel_parts` parts, of which `parallel_parts` are computed at a time. All parts
    together make one update, normalized by the total weight of the target tokens in the
    global batch.

    A step is invalid if its loss or gradient is not finite, or the norm of its gradient
    exceeds `max_gradient_norm`. It is also invalid if no target token has a weight
    above 0. An invalid step changes no weights and no metrics. `last_fault` stores the
    reason (see `step_check.check_step`).

    A `TrainingModel` cannot be saved as a whole. Save `transformer`, or weights only.

    Args:
        transformer: The model to train.
        label_smoothing: Probability mass spread over the vocabulary, in [0, 1).
        gradient_accumulation_steps: Number of groups of parts that are computed one
            after another. More groups need less memory.
        global_clipnorm: Maximum norm of the global batch's gradient over all variables.
            Larger gradients are scaled down to it. If `None`, gradients are not
            clipped.
        max_gradient_norm: Gradient norm, before clipping, above which the update is
            skipped. If `None`, any finite norm is accepted.
        parallel_parts: Number of parts that are computed in parallel. On a CPU, one
            core per part gives better utilization than all cores on one part (see
            `configure_threads`).
        guided_alignment: A `GuidedAlignment`, whose loss is added to the loss of the
            tokens and to the metric `loss`. If `None`, attention is not guided.
        word_dropout: Probability of zeroing the embedding of a source or target token.
            The remaining embeddings are scaled up, as in dropout.
        consistency: A `Consistency`, whose divergence is added to the loss. Each batch
            then passes through the model twice. If `None`, no divergence is added.

    Raises:
        ValueError: If `label_smoothing` or `word_dropout` is outside [0, 1), or
            `gradient_accumulation_steps` or `parallel_parts` is below 1.
    """

    def __init__(
        self,
        transformer,
        label_smoothing=0.1,
        gradient_accumulation_steps=1,
        global_clipnorm=None,
        max_gradient_norm=None,
        parallel_parts=1,
        guided_alignment=None,
        word_dropout=0.0,
        consistency=None,
        **kwargs,
    ):
        require_tensorflow("`TrainingModel`")
        parts = gradient_accumulation_steps, parallel_parts
        if min(parts) < 1:
            raise ValueError(
                "`gradient_accumulation_steps` and `parallel_parts` must be 1 or more. "
                f"Received: {parts}."
            )
        super().__init__(dtype=transformer.dtype_policy, **kwargs)
        self.transformer = transformer
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.parallel_parts = parallel_parts
        self.guided_alignment = guided_alignment
        self.word_dropout = self.token_cutoff = None
        self.set_regularization(label_smoothing, word_dropout, consistency)
        self.checked_update = CheckedUpdate(global_clipnorm, max_gradient_norm)
        # `step_check.OK`, or a key of `step_check.FAULT_REASONS`.
        self.last_fault = self.add_weight(
            shape=(),
            initializer="zeros",
            dtype="int32",
            trainable=False,
            aggregation="only_first_replica",
            name="last_fault",
        )
        self.loss_metric = TokenMean(name="loss")
        self.perplexity_metric = Perplexity()
        self.accuracy_metric = TokenAccuracy()
        # `metrics` must not contain this counter, because `fit` would reset it. It is
        # float64, because float32 cannot count beyond 2^24.
        self.token_counter = _GlobalSum(name="tokens", dtype="float64")

    def set_regularization(self, label_smoothing, word_dropout=0.0, consistency=None):
        """Sets the regularization of later calls of `fit`, which trace the step again.

        The arguments have the same meaning as in the constructor.

        Raises:
            ValueError: If `label_smoothing` or `word_dropout` is outside [0, 1). Also
                if the model is built, and `word_dropout` or the cutoff of
                `consistency` was 0 until now and no longer is.
        """
        rates = {"label_smoothing": label_smoothing, "word_dropout": word_dropout}
        for name, rate in rates.items():
            if not 0 <= rate < 1:
                raise ValueError(f"`{name}` must be in [0, 1). Received: {rate}.")
        cutoff = consistency.cutoff if consistency is not None else 0.0
        new = (word_dropout and not self.word_dropout, cutoff and not self.token_cutoff)
        if self.built and any(new):
            raise ValueError(
                "Once the model is built, `word_dropout` and the cutoff of "
                "`consistency` must not become positive for the first time. "
                f"Received: word_dropout={word_dropout}, cutoff={cutoff}."
            )
        self.label_smoothing = label_smoothing
        self.consistency = consistency
        self._set_rate("word_dropout", word_dropout, is_scaled=True)
        self._set_rate("token_cutoff", cutoff, is_scaled=False)
        self.train_function = None

    def _set_rate(self, name, rate, is_scaled):
        """Sets the rate of a `TokenDropout`, created for the first rate above 0."""
        layer = getattr(self, name)
        if layer is not None:
            layer.rate = rate
        elif rate:
            setattr(self, name, TokenDropout(rate, is_scaled))

    def random_states(self):
        """Returns the state variables of random generators outside the transformer."""
        layers = (self.word_dropout, self.token_cutoff)
        return [each.seed_generator.state.value for each in layers if each is not None]

    @property
    def metrics(self):
        return [self.loss_metric, self.perplexity_metric, self.accuracy_metric]

    def build(self, inputs_shape):
        if not self.transformer.built:
            self.transformer.build(inputs_shape)
        # If the first step created variables, TensorFlow would trace it twice.
        if self.compiled and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    def compile(self, optimizer="rmsprop", **kwargs):
        """Like `keras.Model.compile`, without losses and metrics, which are built in.

        Raises:
            ValueError: If a loss or metric is given.
        """
        names = ("loss", "loss_weights", "metrics", "weighted_metrics")
        given = [name for name in names if kwargs.get(name)]
        if given:
            raise ValueError(
                "`TrainingModel` computes its own loss and metrics. To use others, "
                f"compile the `Transformer`. Received: {', '.join(given)}."
            )
        super().compile(optimizer, **kwargs)

    def get_config(self):
        raise NotImplementedError(
            "A `TrainingModel` cannot be saved as a whole. Save its `transformer`, or "
            "save weights only (in callbacks, `save_weights_only=True`)."
        )

    def call(self, inputs, training=None):
        return self.transformer(inputs, training=training)

    def train_step(self, data):
        """Updates the weights from one batch.

        Args:
            data: `(inputs, labels)` or `(inputs, labels, sample_weight)`. `inputs` is a
                dict with `source_ids` and `target_ids` (see `Transformer.call`).
                `labels` is `[batch, target_length]`. `sample_weight` is `[batch]` or
                `[batch, target_length]`. Loss and metrics are weighted means over
                tokens.

        Returns:
            Dict of the metrics over all batches since they were last reset.
        """
        inputs, labels = self._unpack(data)
        # Calling the transformer would build it, but this step calls only its methods.
        self.build({name: inputs[name].shape for name in ("source_ids", "target_ids")})
        if not self.trainable_variables:
            raise ValueError(
                "The model must have weights that train, but all of its layers are "
                "frozen. Set `trainable = True` on a layer and on those around it."
            )
        tokens, total_weight = self._global_sizes(inputs, labels)
        gradients, sums = self._gradients_in_parts(
            inputs, labels, scale=1.0 / tf.maximum(total_weight, 1e-9)
        )
        if self.transformer.losses:
            raise ValueError(
                "`TrainingModel` does not support regularizers or `add_loss`. Remove "
                "them, or compile and fit the `Transformer` itself."
            )
        fault = self.checked_update.apply(
            self.optimizer, gradients, self.trainable_variables, sums[0], total_weight
        )
        self.last_fault.assign(fault)
        is_valid = tf.equal(fault, step_check.OK)
        tokens, total_weight, *sums = (
            tf.where(is_valid, value, 0.0) for value in (tokens, total_weight, *sums)
        )
        self.token_counter.update_state(tokens)
        return self._update_metrics(sums, total_weight)

    def test_step(self, data):
        """Updates the metrics from one batch, without dropout. See `train_step`."""
        inputs, labels = self._unpack(data)
        sums = self._sums(inputs, labels, training=False)
        return self._update_metrics(sums, self._global_sizes(inputs, labels)[1])

    def _unpack(self, data):
        """Returns the inputs and the labels.

        Any sample weights are added to the inputs under the key `weights`.
        """
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        self.transformer.check_inputs(inputs)
        if weights is not None:
            weights = tf.cast(weights, tf.float32)
            if weights.shape.rank == 1:
                weights = weights[:, None]
            inputs = {**inputs, "weights": tf.broadcast_to(weights, tf.shape(labels))}
        return inputs, labels

    def _replace_padding(self, inputs, labels):
        """Replaces padding in the labels and computes their weights.

        Returns:
            `(labels, is_token, weights)`, each `[batch, target_length]`. At padding,
            all three are 0. `is_token` is 1 at tokens.
        """
        labels, is_token = replace_padding(labels, self.transformer.pad_id)
        return labels, is_token, is_token * inputs.get("weights", 1.0)

    def _global_sizes(self, inputs, labels):
        """Returns the number of tokens in the global batch and their total weight."""
        _, *sizes = self._replace_padding(inputs, labels)
        sizes = tf.stack([tf.reduce_sum(each) for each in sizes])
        return tf.unstack(global_sum(sizes))

    def _gradients(self, inputs, labels, scale):
        """Returns the gradients of the scaled loss, and the result of `_sums`."""
        variables = [variable.value for variable in self.trainable_variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            sums = self._sums(inputs, labels, training=True)
            loss = self.optimizer.scale_loss(sums[0] * scale)
        return tape.gradient(loss, variables, unconnected_gradients="zero"), sums

    def _gradients_in_parts(self, inputs, labels, scale):
        """Like `_gradients`, but computes the batch in parts and adds their results."""
        parts = self.gradient_accumulation_steps * self.parallel_parts
        if parts == 1:
            return self._gradients(inputs, labels, scale)
        # XLA needs constant shapes, so rows of padding give all parts the same number
        # of rows.
        missing = tf.math.floormod(-tf.shape(labels)[0], parts)

        def divide(array):
            pad_id = tf.cast(self.transformer.pad_id, array.dtype)
            array = tf.pad(array, [[0, missing], [0, 0]], constant_values=pad_id)
            return tf.reshape(array, [parts, -1, tf.shape(array)[1]])

        inputs, labels = tf.nest.map_structure(divide, (inputs, labels))

        def body(index, gradients, sums):
            part_inputs = {name: array[index] for name, array in inputs.items()}
            new, new_sums = self._gradients(part_inputs, labels[index], scale)
            gradients = [
                total + tf.convert_to_tensor(gradient)
                for total, gradient in zip(gradients, new, strict=True)
            ]
            sums = [total + value for total, value in zip(sums, new_sums, strict=True)]
            return index + 1, gradients, sums

        zeros = [tf.zeros_like(variable.value) for variable in self.trainable_variables]
        sums = [tf.constant(0.0)] * 3
        _, gradients, sums = tf.while_loop(
            lambda index, *_: index < parts,
            body,
            (0, zeros, sums),
            parallel_iterations=self.parallel_parts,
        )
        return gradients, sums

    def _sums(self, inputs, labels, training):
        """Returns the weighted sums of losses, NLLs and correct predictions."""
        labels, _, weights = self._replace_padding(inputs, labels)
        flat_labels = tf.reshape(labels, [-1])
        flat_weights = tf.reshape(weights, [-1])
        options = (self.label_smoothing, self._chunk_tokens())
        is_consistent = training and self.consistency is not None
        repeated = self._repeat_inputs(inputs, 2 if is_consistent else 1, training)
        vectors, scores = self._decoder_output(repeated, training)
        # [batch, target_length, d_model] to [tokens, d_model]
        vectors = tf.reshape(tf.cast(vectors, tf.float32), [-1, vectors.shape[-1]])
        vectors, matrix = self.transformer.token_embedding.loss_operands(vectors)
        matrix = tf.convert_to_tensor(matrix)
        if is_consistent:
            first, second = tf.split(vectors, 2)
            loss_weights = self.consistency.loss_weights
            sums = consistency_loss(
                first,
                second,
                matrix,
                flat_labels,
                flat_weights,
                loss_weights,
                *options,
            )
        else:
            sums = projected_loss(vectors, matrix, flat_labels, flat_weights, *options)
        loss, nll, correct = tf.unstack(sums)
        if self.guided_alignment is not None:
            scores = scores[: tf.shape(labels)[0]]  # of the first pass
            loss += self.guided_alignment.loss(scores, inputs, weights)
        return [loss, nll, correct]

    def _repeat_inputs(self, inputs, count, training):
        """Repeats the batch for `count` passes and adds random factors for embeddings.

        Returns:
            Inputs of `Transformer.decoder_output`: arrays `[count * batch, length]`,
            with the rows of one pass after another.
        """
        inputs = {name: inputs[name] for name in ("source_ids", "target_ids")}
        repeated = {name: tf.concat([ids] * count, 0) for name, ids in inputs.items()}
        if not training:
            return repeated
        for name, ids in inputs.items():
            factors = None
            if self.word_dropout is not None and self.word_dropout.rate:
                factors = self.word_dropout(repeated[name])
            if self.token_cutoff is not None and self.token_cutoff.rate:
                # The cutoff applies to the second pass only.
                cutoff = self.token_cutoff(ids)
                cutoff = tf.concat([tf.ones_like(cutoff), cutoff], 0)
                factors = cutoff if factors is None else factors * cutoff
            if factors is not None:
                repeated[name.replace("ids", "factors")] = factors
        return repeated

    def _decoder_output(self, inputs, training):
        """Returns the decoder output, and the scores for `guided_alignment` or `None`.

        The scores are the cross-attention scores of the guided layer.
        """
        guided = self.guided_alignment
        if guided is None:
            return self.transformer.decoder_output(inputs, training=training), None
        output, scores = self.transformer.decoder_output(
            inputs, training=training, return_attention_scores=True
        )
        _, cross_scores = scores[guided.layer_index(self.transformer)]
        return output, cross_scores

    def _chunk_tokens(self):
        if tf.config.list_physical_devices("GPU"):
            return GPU_CHUNK_TOKENS
        # Small chunks stay in the CPU cache, but each chunk reads the whole output
        # projection, so a wider model needs larger chunks.
        return 2 * self.transformer.d_model

    def _update_metrics(self, sums, total_weight):
        # A mean of per-replica means would not weight tokens equally, so each replica
        # counts the global batch.
        sums = tf.unstack(global_sum(tf.stack(sums)))
        for metric, total in zip(self.metrics, sums, strict=True):
            metric.update_sums(total, total_weight)
        return {metric.name: metric.result() for metric in self.metrics}
