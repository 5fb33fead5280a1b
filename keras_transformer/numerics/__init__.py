"""Arithmetic that exists for speed: each function matches a plain formula.

The tests in `tests/numerics/` hold each function to its formula. Gains are of the
function alone, in turns on two CPU cores, by `python benchmarks/numerics.py` unless
another command is named.

| function | plain formula | test | gain |
| --- | --- | --- | --- |
| `dropout.Dropout` | `keras.layers.Dropout` | test_dropout.py | 1.39x |
| `normalization.LayerNormalization` | Keras's layer | test_normalization.py | 1.05x |
| the same, with `training=True` | Keras's layer | test_normalization.py | 1.60x |
| `softmax.masked_softmax`, training | its own gradient by TensorFlow | test_softmax.py | \
1.22x |
| `softmax.weighted_values` | `softmax(logits) @ values` | test_softmax.py | softmax \
of one step 73 to 9 us, `benchmarks/decoding.py fixed` |
| `softmax.mask_to_bias` | `where(mask, logits, -inf)` | test_softmax.py | one bias \
serves all layers, `benchmarks/decoding.py fixed` |
| `matrices.apply_flattened`, `Dense` | `keras.layers.Dense` | test_matrices.py | a \
sixth fewer operations per step, `benchmarks/decoding.py fixed` |
| `matrices.pack_kernel`, `packed_matmul` | `rows @ kernel` | test_matrices.py | 20 \
tokens of base under XLA 217 to 142 ms, `benchmarks/decoding.py fixed` |
| `gradients.custom_gradient` | `keras.ops.custom_gradient` | test_gradients.py | used \
by the first four rows |
"""
