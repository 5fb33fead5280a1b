"""Functions and layers optimized for speed. Each is equivalent to a plain formula.

| entry | computes | plain formula |
| --- | --- | --- |
| `Dropout` | dropout, two units per random number | `keras.layers.Dropout` |
| `LayerNormalization` | layer normalization in few passes over memory | Keras's layer |
| `masked_softmax` | the softmax over allowed keys | `softmax(where(mask, x, -inf))` |
| `weighted_values` | attention over parts of a cache | `softmax(logits) @ values` |
| `mask_to_bias` | an attention bias for all layers | `where(mask, 0, -inf)` |
| `apply_flattened` | a function of `x`, flattened to rows | `function(x)` |
| `Dense` | a dense layer on flattened rows | `keras.layers.Dense` |
| `pack_kernel`, `packed_matmul` | a product by blocks of columns | `rows @ kernel` |

The tests are in `tests/numerics`, the benchmarks in `benchmarks`. The last column
refers to the notes below.

| entry | test against the formula | notes |
| --- | --- | --- |
| `Dropout` | `test_dropout_drops_at_rate_and_keeps_the_mean` | 1 |
| `LayerNormalization` | `test_normalization_matches_keras` | 1 |
| its gradient | `test_normalization_gradients_match_keras` | 1 |
| `masked_softmax` | `test_masked_softmax_matches_numpy` | 1 |
| its gradient | `test_masked_softmax_gradient_is_its_jacobian` | 1 |
| `weighted_values` | `test_weighted_values_match_one_softmax_over_all_parts` | 1 |
| `mask_to_bias` | `test_mask_to_bias_leaves_allowed_logits_and_hides_the_others` | 2 |
| `apply_flattened` | `test_apply_flattened_passes_a_matrix_and_restores_the_axes` | 1 |
| `Dense` | `test_dense_matches_keras` | 1 |
| `pack_kernel`, `packed_matmul` | `test_packed_kernel_gives_the_same_products` | 1, 3 |

1. `numerics.py` measures the speedup. Its results are not in the repository.
2. `decoding.py` measures the whole search. No benchmark measures this entry alone.
3. XLA reads an unpacked kernel at half the memory's bandwidth (see
   docs/explanation/optimizations.md).

The modules `gradients` and `activations` contain helpers, which save no time.
"""
