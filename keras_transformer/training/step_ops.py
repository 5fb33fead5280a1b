"""What a training step does differently on TensorFlow and on JAX.

On TensorFlow, operations read and assign variables. On JAX, gradients and loops need
functions of arrays alone, so a `keras.StatelessScope` supplies the values of the
variables and collects the assigned ones.
"""

import concurrent.futures
import itertools

import keras
import numpy as np

# Number of tokens whose logits are enough to use a GPU fully.
_CHUNK_TOKENS = 8192
# On TensorFlow, the number of logits per chunk: 1 GiB in float32.
_CHUNK_LOGITS = 1 << 28


def is_jax():
    return keras.config.backend() == "jax"


def call_step(step, groups, arguments):
    """Calls `step(data)` with the arguments of `train_step` or `test_step`.

    The arguments are `data`, or on JAX `state` and `data`. The state has the values of
    the variables in each of `groups`. On JAX, the result is a pair of the step's result
    and the new state.
    """
    *states, data = arguments
    if not states:
        return step(data)
    variables = [*itertools.chain(*groups)]
    result, values = _call_stateless(
        lambda: step(data), variables, itertools.chain(*states[0])
    )
    values = iter(values)
    return result, tuple([next(values) for _ in group] for group in groups)


def jit_step(step, groups):
    """Returns the compiled `step(state, data)` of `call_step`, which reuses `state`."""
    import jax

    shardings = None
    if keras.distribution.distribution() is not None:
        shardings = (
            None,
            tuple([x.sharding for x in _values(each)] for each in groups),
        )
    return jax.jit(step, donate_argnums=0, out_shardings=shardings)


def compile_step(step, groups, names, shapes):
    """Compiles the result of `jit_step` for shapes of batches, side by side.

    `names` are those of the inputs. `shapes` are pairs of the shape of the inputs of
    the source and that of the labels.
    """
    import jax

    distribution = keras.distribution.distribution()

    def ids(shape):
        sharding = None
        if distribution is not None:
            sharding = distribution.get_data_layout(shape).backend_layout
        return jax.ShapeDtypeStruct(shape, "int32", sharding=sharding)

    state = tuple(_values(each) for each in groups)
    lowered = []
    for source, target in shapes:
        inputs = {
            name: ids(source if name.startswith("source") else target) for name in names
        }
        lowered.append(step.lower(state, (inputs, ids(target))))
    # XLA does not hold the GIL.
    with concurrent.futures.ThreadPoolExecutor() as threads:
        list(threads.map(lambda each: each.compile(), lowered))


def sync_variables(model):
    """Gives the model's variables their current values, inside a callback of `fit`.

    While Keras trains on JAX, it keeps the values in its own state.
    """
    if is_jax():
        model.jax_state_sync()


def current_value(variable, model):
    """Returns a non-trainable variable's value, as an array of NumPy.

    Inside a callback of `fit`, `sync_variables` would cost more, since it assigns all
    variables.
    """
    state = getattr(model, "_jax_state", None)
    if not state or model._jax_state_synced:
        return variable.numpy()
    index = [each is variable for each in model.non_trainable_variables].index(True)
    return np.asarray(state["non_trainable_variables"][index])


def compute_gradients(function, model):
    """Returns the gradients of a loss with respect to the trainable variables.

    `function()` returns the loss and other results, which are returned too.
    """
    variables = model.trainable_variables
    if not is_jax():
        import tensorflow as tf

        values = [variable.value for variable in variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            loss, results = function()
        gradients = tape.gradient(loss, values, unconnected_gradients="zero")
        # Gradients of embeddings may be sparse.
        return [tf.convert_to_tensor(gradient) for gradient in gradients], results
    import jax

    others = model.non_trainable_variables

    def pure(values, other_values):
        (loss, results), new = _call_stateless(
            function, [*variables, *others], [*values, *other_values]
        )
        return loss, (results, new[len(values) :])

    gradients, (results, new) = jax.grad(pure, has_aux=True)(
        _values(variables), _values(others)
    )
    _assign(others, new)
    return gradients, results


def repeat(function, times, carried, model, parallel_iterations):
    """Returns the arrays `carried = function(index, carried)` after `times` calls.

    The function may assign variables of `model`. On TensorFlow, up to
    `parallel_iterations` calls overlap.
    """
    if not is_jax():
        import tensorflow as tf

        _, carried = tf.while_loop(
            lambda index, _: index < times,
            lambda index, carried: (index + 1, function(index, carried)),
            (0, carried),
            parallel_iterations=parallel_iterations,
        )
        return carried
    import jax

    variables = model.variables

    def body(index, state):
        return _call_stateless(lambda: function(index, state[0]), variables, state[1])

    carried, values = jax.lax.fori_loop(0, times, body, (carried, _values(variables)))
    _assign(variables, values)
    return carried


def scan(function, carried, chunks, num_results):
    """Calls `function` for one chunk after another, as `jax.lax.scan` does.

    `ops.scan` requires results that have the shapes of the carried arrays. `function`
    receives the carried arrays and a list with one chunk of each of `chunks`, arrays
    `[chunks, ...]`. It returns the new carried arrays, and results with the shapes of
    the first `num_results` chunks, float32. The results are concatenated.
    """
    if not is_jax():
        import tensorflow as tf

        num_chunks = tf.shape(chunks[0])[0]
        results = [
            tf.TensorArray(tf.float32, num_chunks, element_shape=each.shape[1:])
            for each in chunks[:num_results]
        ]

        def body(index, carried, results):
            carried, new = function(carried, [each[index] for each in chunks])
            results = [
                each.write(index, x) for each, x in zip(results, new, strict=True)
            ]
            return index + 1, carried, results

        _, carried, results = tf.while_loop(
            lambda index, *_: index < num_chunks,
            body,
            (0, carried, results),
            parallel_iterations=1,
        )
        return carried, [each.concat() for each in results]
    import jax

    carried, results = jax.lax.scan(function, carried, chunks)
    return carried, [each.reshape(-1, *each.shape[2:]) for each in results]


def accelerator_chunk_tokens(num_outputs, num_tokens):
    """Returns the number of tokens whose logits a GPU or TPU computes at a time.

    `num_tokens` is the number of tokens in the batch, an int or a scalar tensor.
    """
    if not is_jax():
        import tensorflow as tf

        # Chunks of equal size have the fewest rows of padding.
        num_tokens = tf.maximum(num_tokens, 1)
        num_chunks = -(-num_tokens // max(1, _CHUNK_LOGITS // num_outputs))
        return -(-num_tokens // num_chunks)
    import jax

    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    # As many as fill a sixteenth of the memory with float32 logits. Gradients take
    # as much again. Several chunks take longer than a single one.
    return max(_CHUNK_TOKENS, memory // (16 * 4 * num_outputs))


def apply_if(condition, optimizer, gradients, variables):
    """Applies the gradients if `condition` is true, which all replicas agree on."""
    if is_jax():
        import jax

        slots = optimizer.variables
        values, slot_values = jax.lax.cond(
            condition,
            lambda gradients, values, slot_values: optimizer.stateless_apply(
                slot_values, gradients, values
            ),
            lambda gradients, values, slot_values: (values, slot_values),
            *(gradients, _values(variables), _values(slots)),
        )
        _assign([*variables, *slots], [*values, *slot_values])
        return
    import tensorflow as tf

    def apply(*gradients):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def run_if(condition, function):
        def run():
            function()
            return tf.constant(True)

        tf.cond(condition, run, lambda: tf.constant(False))

    if not tf.distribute.has_strategy():
        run_if(condition, lambda: apply(*gradients))
        return

    # `apply_gradients` calls `merge_call`, which TensorFlow forbids inside a `tf.cond`
    # in a replica context. So `merge_call` leaves this context before the `tf.cond`.
    def apply_on_all(strategy, condition, *gradients):
        run_if(
            strategy.experimental_local_results(condition)[0],
            lambda: strategy.extended.call_for_each_replica(apply, args=gradients),
        )

    context = tf.distribute.get_replica_context()
    context.merge_call(apply_on_all, args=(condition, *gradients))


def _call_stateless(function, variables, values):
    """Calls `function()` with `values` of variables, and returns the new values too."""
    mapping = [*zip(variables, values, strict=True)]
    with keras.StatelessScope(mapping, collect_losses=True) as scope:
        result = function()
    return result, [scope.get_current_value(variable) for variable in variables]


def _values(variables):
    return [variable.value for variable in variables]


def _assign(variables, values):
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
