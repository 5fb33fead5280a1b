"""What a growing cache keeps of a beam, and attention over its two parts."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import numpy
from layer_checks import randomize

from keras_transformer.layers import Decoder
from keras_transformer.layers import decoding_cache
from keras_transformer.numerics.softmax import exponentials_of_parts

BATCH, BEAM, WIDTH, STEPS = 2, 3, 7, 9
SIZES = {"num_heads": 3, "key_dim": 5, "d_ff": 13, "value_dim": 2}

grows = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="A cache that grows has no static shapes."
)


def histories_and_parents():
    """For each step the beams' parents, and the slots that each hypothesis then has.

    A slot is a position and the hypothesis that had the token there.
    """
    random = np.random.default_rng(3)
    slots = [[[] for _ in range(BEAM)] for _ in range(BATCH)]
    for step in range(STEPS):
        parents = random.integers(0, BEAM, (BATCH, BEAM))
        parents[0] = parents[0, 0]  # the first sentence's hypotheses are all of one
        slots = [
            [[*beams[parent], (step, parent)] for parent in row]
            for beams, row in zip(slots, parents.tolist(), strict=True)
        ]
        yield parents, slots


@grows
def test_slots_that_no_hypothesis_sees_are_forgotten():
    """And what is decoded then is what each hypothesis's whole past gives."""
    random = np.random.default_rng(4)
    decoder = Decoder(2, **SIZES)
    source = random.normal(size=(BATCH, 6, WIDTH)).astype("float32")
    decoder.build((BATCH, 4, WIDTH), source.shape)
    randomize(decoder)
    inputs = random.normal(size=(BATCH, STEPS, BEAM, WIDTH)).astype("float32")
    context = decoder.init_context(source)
    cache = decoder.init_cache(BATCH, beam_size=BEAM)
    mask = ops.ones((BATCH, 6), dtype="bool")
    slots = [[[] for _ in range(BEAM)] for _ in range(BATCH)]
    fewer = 0
    for step, (parents, after) in enumerate(histories_and_parents()):
        new = inputs[:, step].reshape(BATCH * BEAM, 1, WIDTH)
        output, cache = decoder.call_with_cache(new, cache, context, mask, step)
        for sentence in range(BATCH):
            for hypothesis, past in enumerate(slots[sentence]):
                whole = [*past, (step, hypothesis)]
                whole = np.stack([inputs[sentence, p, h] for p, h in whole])[None]
                expected = decoder(whole, source[sentence : sentence + 1])
                np.testing.assert_allclose(
                    numpy(output)[sentence * BEAM + hypothesis, 0],
                    numpy(expected)[0, -1],
                    rtol=1e-3,
                    atol=1e-4,
                )
        rows = parents + BEAM * np.arange(BATCH)[:, None]
        cache = decoder.reorder_cache(
            cache, ops.convert_to_tensor(rows.reshape(-1), dtype="int32")
        )
        slots = after
        if step % 3 == 1:
            cache = decoder.settle_cache(cache)
            used = max(len({slot for own in beams for slot in own}) for beams in slots)
            assert cache["layers"][1]["key"].shape[2] == used
            assert cache["layers"][1]["value"].shape[2] == used
            assert cache["ancestors"].shape == (BATCH, BEAM, used)
            assert cache["layers"][1]["recent_key"].shape[2] == 0
            fewer += used < BEAM * (step + 1)
    assert fewer == 3


def test_slots_in_use_keep_their_order():
    """The shorter sentence gets others behind, the first that it does not see."""
    ancestors = np.zeros((2, 2, 6), "bool")
    ancestors[0, 0, [1, 4]] = True
    ancestors[0, 1, [1, 5]] = True
    ancestors[1, :, 3] = True
    slots = numpy(decoding_cache.slots_in_use(ops.convert_to_tensor(ancestors)))
    np.testing.assert_array_equal(slots, [[1, 4, 5], [3, 0, 1]])


def test_slots_are_taken_of_each_sentence_for_all_of_its_heads():
    x = np.arange(2 * 3 * 4 * 5, dtype="float32").reshape(2, 3, 4, 5)
    slots = np.array([[1, 3], [2, 0]], "int32")
    taken = decoding_cache.take_slots(ops.array(x), ops.array(slots))
    expected = np.stack([x[0][:, [1, 3]], x[1][:, [2, 0]]])
    np.testing.assert_array_equal(numpy(taken), expected)


@pytest.mark.parametrize("sizes", [(4, 3), (0, 3), (5,)])
def test_a_softmax_in_parts_is_that_of_all(sizes):
    random = np.random.default_rng(5)
    logits = [random.normal(size=(2, 3, n)).astype("float32") * 30 for n in sizes]
    whole = np.concatenate(logits, axis=-1).astype("float64")
    expected = np.exp(whole - whole.max(axis=-1, keepdims=True))
    expected /= expected.sum(axis=-1, keepdims=True)
    exponentials, totals = exponentials_of_parts([ops.array(each) for each in logits])
    found = np.concatenate([numpy(each) for each in exponentials], axis=-1)
    assert found.max() <= 1
    np.testing.assert_allclose(found / numpy(totals), expected, rtol=1e-4, atol=1e-7)
