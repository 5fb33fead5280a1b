"""Training step of a `Transformer`, as a `keras.Model` for `model.fit`."""

import dataclasses
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.errors import require_backend
from keras_transformer.training.consistency import Consistency, draw_token_factors
from keras_transformer.training.guided_alignment import (
    GROUPS,
    GuidedAlignment,
    same_groups,
)
from keras_transformer.training.losses import replace_padding
from keras_transformer.training.metrics import Perplexity, TokenAccuracy, TokenMean
from keras_transformer.training.projected_loss import projected_loss
from keras_transformer.training.replicas import global_sum
from keras_transformer.training.step_check import OK, apply_checked
from keras_transformer.training.step_ops import (
    accelerator_chunk_tokens,
    call_step,
    compile_step,
    compute_gradients,
    current_value,
    is_jax,
    jit_step,
    repeat,
)

# Integers on a JAX device have 32 bits, so the count of tokens has two digits.
_COUNT_BASE = 1 << 30


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """Options of a training step: the arguments of `TrainingModel` with these names."""

    label_smoothing: float
    gradient_accumulation_steps: int
    global_clipnorm: float | None
    skip_above_gradient_norm: float | None
    parallel_parts: int
    guided_alignment: GuidedAlignment | None
    token_dropout: float
    consistency: Consistency | None

    def __post_init__(self):
        for name in ("label_smoothing", "token_dropout"):
            rate = getattr(self, name)
            if not 0 <= rate < 1:
                raise ValueError(f"`{name}` must be in [0, 1). Received: {rate}.")
        parts = self.gradient_accumulation_steps, self.parallel_parts
        if min(parts) < 1:
            raise ValueError(
                "`gradient_accumulation_steps` and `parallel_parts` must be 1 or more. "
                f"Received: {parts}."
            )

    @property
    def token_cutoff(self):
        """Fraction of tokens that the second pass lacks (see `Consistency`)."""
        return self.consistency.cutoff if self.consistency is not None else 0.0


class _Batch(NamedTuple):
    """A batch, or a part of one. At padding, labels and weights are 0."""

    inputs: dict  # source_ids [batch, source_length], target_ids [batch, target_length]
    labels: Any  # [batch, target_length], int32
    weights: Any  # [batch, target_length], float32


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
    exceeds `skip_above_gradient_norm`. It is also invalid if no target token has a
    weight above 0. An invalid step changes no weights and no metrics. `last_fault`
    stores the reason.

    Under a `bfloat16` policy, logits are rounded to bfloat16, where several may be the
    highest: accuracy then counts each of them as correct.

    A `TrainingModel` cannot be saved as a whole. Save `transformer`, or weights only.
    It runs on Keras's TensorFlow and JAX backends.

    Args:
        transformer: The model to train.
        label_smoothing: Probability mass spread over the vocabulary, in [0, 1).
        gradient_accumulation_steps: Number of groups of parts that are computed one
            after another, to save memory.
        global_clipnorm: Norm of the global batch's gradient to which larger gradients
            are scaled down, or `None`.
        skip_above_gradient_norm: Gradient norm, before clipping, above which the update
            is skipped, or `None`.
        parallel_parts: Number of parts that are computed in parallel, such as one for
            each of a few CPU cores (see `configure_threads`).
        guided_alignment: `GuidedAlignment`, whose loss is added to that of the tokens
            and to the metric `loss`, or `None`.
        token_dropout: Probability of zeroing the embedding of a source or target token.
            The others are scaled up.
        consistency: `Consistency`, whose divergence is added to the loss, or `None`.
            Each batch then passes through the model twice.

    Raises:
        ValueError: If `label_smoothing` or `token_dropout` is outside [0, 1), or
            `gradient_accumulation_steps` or `parallel_parts` is below 1.
        ModelError: If Keras uses another backend.

    Examples:
        >>> transformer = kt.Transformer.from_size("tiny", vocabulary_size=1000)
        >>> model = kt.training.TrainingModel(transformer, label_smoothing=0.1)
        >>> schedule = kt.training.NoamSchedule(d_model=128)
        >>> optimizer = kt.training.FusedAdam(schedule, beta_2=0.98, epsilon=1e-9)
        >>> model.compile(optimizer)
        >>> history = model.fit(batches, steps_per_epoch=1000)  # of training_dataset
    """

    def __init__(
        self,
        transformer,
        label_smoothing=0.1,
        gradient_accumulation_steps=1,
        global_clipnorm=None,
        skip_above_gradient_norm=None,
        parallel_parts=1,
        guided_alignment=None,
        token_dropout=0.0,
        consistency=None,
        **kwargs,
    ):
        require_backend("`TrainingModel`", "tensorflow", "jax")
        super().__init__(dtype=transformer.dtype_policy, **kwargs)
        self.transformer = transformer
        self._jitted_step = None
        # Random generators for `token_dropout` and `token_cutoff`, if they are used.
        self.generators = {}
        self._set_options(
            StepOptions(
                label_smoothing,
                gradient_accumulation_steps,
                global_clipnorm,
                skip_above_gradient_norm,
                parallel_parts,
                guided_alignment,
                token_dropout,
                consistency,
            )
        )
        state = {
            "initializer": "zeros",
            # On TensorFlow int64, because it keeps int32 variables on the CPU, where an
            # XLA program for a GPU cannot access them.
            "dtype": "int",
            "trainable": False,
            # Equal on all replicas, so that one worker can read it alone.
            "aggregation": "only_first_replica",
        }
        # `step_check.OK`, or a key of `step_check.FAULT_REASONS`.
        self.last_fault = self.add_weight(shape=(), name="last_fault", **state)
        self._token_counts = self.add_weight(shape=(2,), name="tokens", **state)
        self.loss_metric = TokenMean(name="loss")
        self.perplexity_metric = Perplexity()
        self.accuracy_metric = TokenAccuracy()

    @property
    def num_tokens(self):
        """Number of target tokens in all valid steps. `fit` does not reset it."""
        high, low = current_value(self._token_counts, self).tolist()
        return high * _COUNT_BASE + low

    @num_tokens.setter
    def num_tokens(self, number):
        self._token_counts.assign(divmod(int(number), _COUNT_BASE))

    def change_options(self, **changes):
        """Changes arguments of the constructor, as from one stage to the next.

        Later calls of `fit` trace a new step.

        Raises:
            ValueError: If an argument is invalid. Also if the model is built, and
                `token_dropout` or the cutoff of `consistency` was 0 until now and no
                longer is.
        """
        self._set_options(dataclasses.replace(self.options, **changes))

    def _set_options(self, options):
        for name in ("token_dropout", "token_cutoff"):
            rate = getattr(options, name)
            if not rate or name in self.generators:
                continue
            if self.built:
                raise ValueError(
                    "Once the model is built, `token_dropout` and the cutoff of "
                    "`consistency` must not become positive for the first time. "
                    f"Received: {name}={rate}."
                )
            self.generators[name] = keras.random.SeedGenerator()
        self.options = options
        self.train_function = None

    def random_states(self):
        """Returns the state variables of random generators outside the transformer."""
        names = ("token_dropout", "token_cutoff")
        return [
            self.generators[name].state for name in names if name in self.generators
        ]

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

    def fit(self, *arguments, **options):
        """Like `keras.Model.fit`.

        Returns:
            `keras.callbacks.History`.
        """
        if is_jax() and not self.built:
            # Otherwise Keras takes the first batch to build the model, and does not
            # train with it if the dataset is endless.
            self.build({"source_ids": (None, None), "target_ids": (None, None)})
        return super().fit(*arguments, **options)

    def train_step(self, *arguments):
        """Updates the weights from one batch.

        Args:
            *arguments: `data` is `(inputs, labels)` or `(inputs, labels,
                sample_weight)`. `inputs` is a dict with `source_ids` `[batch,
                source_length]` and `target_ids` `[batch, target_length]`. `labels` has
                the shape of `target_ids`. `sample_weight` is `[batch]` or `[batch,
                target_length]`. Loss and metrics are weighted means over tokens. On
                JAX, Keras passes `state` before `data`.

        Returns:
            Dict of the metrics over all batches since they were last reset. On JAX, a
            pair of this dict and the new state.
        """
        return call_step(self._train_step, self._state_variables, arguments)

    def make_train_function(self, force=False):
        """Like Keras's, but on JAX, `compile_shapes` can compile the step ahead."""
        is_eager = self.run_eagerly or not self.jit_compile
        if not is_jax() or is_eager:
            self._jitted_step = None
            super().make_train_function(force)
        elif self.train_function is None or force:
            self._jitted_step = step = jit_step(self.train_step, self._state_variables)
            self.train_function = lambda state, iterator: step(state, next(iterator))

    def compile_shapes(self, shapes):
        """Compiles the training step on JAX for shapes of batches, side by side.

        `shapes` are pairs of the shape of `source_ids` and that of the labels. On
        other backends, and without XLA, nothing happens.
        """
        self.make_train_function()
        if self._jitted_step is not None:
            arguments = self._state_variables, self._input_names, shapes
            compile_step(self._jitted_step, *arguments)

    @property
    def _input_names(self):
        guided = self.options.guided_alignment
        has_groups = guided is not None and guided.aligned is same_groups
        return ("source_ids", "target_ids", *(GROUPS if has_groups else ()))

    @property
    def _state_variables(self):
        """The groups of variables that a training step on JAX gets and returns."""
        return (
            self.trainable_variables,
            self.non_trainable_variables,
            self.optimizer.variables,
            self.metrics_variables,
        )

    def _train_step(self, data):
        batch, is_token = self._unpack(data)
        # Calling the transformer would build it, but this step calls only its methods.
        self.build({name: ids.shape for name, ids in batch.inputs.items()})
        if not self.trainable_variables:
            raise ValueError(
                "The model must have weights that train, but all of its layers are "
                "frozen. Set `trainable = True` on a layer and on those around it."
            )
        tokens, total_weight = _global_sums(is_token, batch.weights)
        scale = self.optimizer.scale_loss(1.0 / ops.maximum(total_weight, 1e-9))
        gradients, sums = self._gradients_in_parts(batch, scale)
        fault = apply_checked(
            self.optimizer,
            gradients,
            self.trainable_variables,
            sums[0],
            total_weight,
            self.options,
        )
        self.last_fault.assign(fault)
        is_valid = ops.equal(fault, OK)
        tokens, total_weight, *sums = (
            ops.where(is_valid, value, 0.0) for value in (tokens, total_weight, *sums)
        )
        high, low = self._token_counts[0], self._token_counts[1]
        low = low + ops.cast(tokens, self._token_counts.dtype)
        self._token_counts.assign([high + low // _COUNT_BASE, low % _COUNT_BASE])
        return self._update_metrics(sums, total_weight)

    def test_step(self, *arguments):
        """Updates the metrics from one batch, without dropout (see `train_step`).

        Returns:
            As `train_step`.
        """
        groups = (
            self.trainable_variables,
            self.non_trainable_variables,
            self.metrics_variables,
        )
        return call_step(self._test_step, groups, arguments)

    def _test_step(self, data):
        batch, is_token = self._unpack(data)
        sums = self._sums(batch, training=False)
        return self._update_metrics(sums, _global_sums(is_token, batch.weights)[1])

    def _unpack(self, data):
        """Returns a `_Batch`, and `[batch, target_length]` with 1 at tokens, else 0."""
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        self.transformer.check_inputs(inputs)
        inputs = {name: inputs[name] for name in self._input_names}
        labels, is_token = replace_padding(labels, self.transformer.pad_id)
        if weights is None:
            return _Batch(inputs, labels, is_token), is_token
        weights = ops.cast(weights, "float32")
        if len(weights.shape) == 1:
            weights = weights[:, None]
        return _Batch(inputs, labels, is_token * weights), is_token

    def _gradients(self, batch, scale):
        """Returns the gradients of the scaled loss, and the result of `_sums`."""

        def loss():
            sums = self._sums(batch, training=True)
            return sums[0] * scale, sums

        return compute_gradients(loss, self)

    def _gradients_in_parts(self, batch, scale):
        """Like `_gradients`, but computes the batch in parts and adds their results."""
        options = self.options
        parts = options.gradient_accumulation_steps * options.parallel_parts
        if parts == 1:
            return self._gradients(batch, scale)
        # XLA needs constant shapes, so rows of padding give all parts the same number
        # of rows.
        missing = -ops.shape(batch.labels)[0] % parts

        def divide(array, padding=0):
            array = ops.pad(array, [[0, missing], [0, 0]], constant_values=padding)
            if not is_jax():
                return ops.reshape(array, [parts, -1, ops.shape(array)[1]])
            # Each part has rows of all devices, which then send each other no rows.
            array = ops.reshape(array, [-1, parts, ops.shape(array)[1]])
            return ops.swapaxes(array, 0, 1)

        pad_id = self.transformer.pad_id
        inputs = {name: divide(ids, pad_id) for name, ids in batch.inputs.items()}
        divided = _Batch(inputs, divide(batch.labels), divide(batch.weights))

        def add_part(index, totals):
            part = keras.tree.map_structure(lambda array: array[index], divided)
            gradients, sums = self._gradients(part, scale)
            return [
                total + value
                for total, value in zip(totals, [*gradients, *sums], strict=True)
            ]

        variables = self.trainable_variables
        zeros = [ops.zeros(each.shape, each.dtype) for each in variables]
        zeros += [ops.zeros(())] * 3
        totals = repeat(add_part, parts, zeros, self, options.parallel_parts)
        return totals[: len(variables)], totals[len(variables) :]

    def _sums(self, batch, training):
        """Returns the weighted sums of losses, NLLs and correct predictions."""
        options = self.options
        is_consistent = training and options.consistency is not None
        vectors, scores = self._decoder_output(batch.inputs, is_consistent, training)
        if training and self.transformer.losses:
            raise ValueError(
                "`TrainingModel` does not support regularizers or `add_loss`. Remove "
                "them, or compile and fit the `Transformer` itself."
            )
        # [batch, target_length, d_model] to [tokens, d_model]
        dtype = "bfloat16" if self.compute_dtype == "bfloat16" else "float32"
        vectors = ops.reshape(ops.cast(vectors, dtype), [-1, vectors.shape[-1]])
        vectors, matrix = self.transformer.token_embedding.loss_operands(vectors)
        labels = ops.reshape(batch.labels, [-1])
        sums = projected_loss(
            ops.split(vectors, 2) if is_consistent else [vectors],
            ops.convert_to_tensor(matrix),
            labels,
            ops.reshape(batch.weights, [-1]),
            options.label_smoothing,
            options.consistency.loss_weights if is_consistent else None,
            self._chunk_tokens(labels),
        )
        loss, nll, correct = ops.unstack(sums)
        if options.guided_alignment is not None:
            scores = scores[: ops.shape(batch.labels)[0]]  # of the first pass
            loss += options.guided_alignment.loss(scores, batch.inputs, batch.weights)
        return [loss, nll, correct]

    def _decoder_output(self, inputs, is_consistent, training):
        """Returns the decoder output, and the scores for `guided_alignment` or `None`.

        If `is_consistent`, the batch passes through the model twice. The rows of the
        first pass come first. The scores are the cross-attention scores of the guided
        layer.
        """
        guided, factors = self.options.guided_alignment, {}
        inputs = {name: inputs[name] for name in ("source_ids", "target_ids")}
        repeated = inputs
        if is_consistent:
            repeated = {
                name: ops.concatenate([ids, ids]) for name, ids in inputs.items()
            }
        if training:
            factors = {
                name.replace("ids", "factors"): self._token_factors(ids, repeated[name])
                for name, ids in inputs.items()
            }
        output = self.transformer.decoder_output(
            repeated,
            training=training,
            return_attention_scores=guided is not None,
            **factors,
        )
        if guided is None:
            return output, None
        output, scores = output
        _, cross_scores = scores[guided.layer_index(self.transformer)]
        return output, cross_scores

    def _token_factors(self, ids, repeated):
        """Returns random factors for the embeddings of `repeated` ids, or `None`."""
        factors, rate = None, self.options.token_dropout
        if rate:
            generator = self.generators["token_dropout"]
            # Kept embeddings are scaled up, as in dropout.
            factors = draw_token_factors(repeated, rate, generator, 1 / (1 - rate))
        if self.options.token_cutoff:
            # The cutoff applies to the second pass only.
            cutoff = draw_token_factors(
                ids, self.options.token_cutoff, self.generators["token_cutoff"]
            )
            cutoff = ops.concatenate([ops.ones_like(cutoff), cutoff])
            factors = cutoff if factors is None else factors * cutoff
        return factors

    def _chunk_tokens(self, labels):
        if not keras.distribution.list_devices()[0].startswith("cpu"):
            num_tokens = ops.shape(labels)[0]
            return accelerator_chunk_tokens(self.transformer.num_outputs, num_tokens)
        # Small chunks stay in the CPU cache, but each chunk reads the whole output
        # projection, so a wider model needs larger chunks.
        return 2 * self.transformer.d_model

    def _update_metrics(self, sums, total_weight):
        # A mean of per-replica means would not weight tokens equally, so each replica
        # counts the global batch.
        sums = _global_sums(*sums)
        for metric, total in zip(self.metrics, sums, strict=True):
            metric.update_sums(total, total_weight)
        return {metric.name: metric.result() for metric in self.metrics}


def _global_sums(*values):
    """Returns the sums of arrays over the global batch."""
    return ops.unstack(global_sum(ops.stack([ops.sum(each) for each in values])))
