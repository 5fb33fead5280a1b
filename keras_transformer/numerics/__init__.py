"""Numerical functions and layers, some of which exist only for speed.

| entry | computes | plain formula |
| --- | --- | --- |
| `Dropout` | dropout, two units per random number | `keras.layers.Dropout` |
| `LayerNormalization` | layer normalization in few passes over memory | Keras's layer |
| `masked_softmax` | the softmax over allowed keys | `softmax(where(mask, x, -inf))` |
| `mask_to_bias` | an attention bias for all layers | `where(mask, 0, -inf)` |
| `weighted_values` | attention over parts of a cache | `softmax(logits) @ values` |
| `pack_kernel`, `packed_matmul` | a product by blocks of columns | `rows @ kernel` |
| `swap_middle_axes` | a transposition | `transpose(x, (0, 2, 1, 3))` |

The layers are in the modules `dropout` and `normalization`, the next three entries in
`softmax`, and the last two rows in `matrices`. Four more modules help: `gradients` has
custom gradients for all backends, `seeds` has seeds that differ between replicas,
`activations` looks up activation functions, and `ranges` limits values to float32.

The tests are in `tests/numerics`:

| entry | test against the formula |
| --- | --- |
| `Dropout` | `test_dropout_drops_at_rate_and_keeps_the_mean` |
| `LayerNormalization` | `test_normalization_matches_keras` |
| its gradient | `test_normalization_gradients_match_keras` |
| `masked_softmax` | `test_masked_softmax_matches_numpy` |
| `mask_to_bias` | `test_mask_to_bias_leaves_allowed_logits_and_hides_the_others` |
| `weighted_values` | `test_weighted_values_match_one_softmax_over_all_parts` |
| `pack_kernel`, `packed_matmul` | `test_packed_kernel_gives_the_same_products` |
| `swap_middle_axes` | `test_swap_middle_axes_matches_numpy` |

The entries below exist for speed alone. Each row must make a whole run at least 3%
faster, as measured by `benchmarks/numerics_runs.py`:

| entry | speedup | run |
| --- | --- | --- |
| `Dropout`, `LayerNormalization` | 1.05 | training step, tiny |
| `pack_kernel`, `packed_matmul` | 1.59 | beam search, one sentence, base, XLA |
| `swap_middle_axes` | 1.12 | beam search, one sentence, tiny |
"""
