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

The tests are in `tests/numerics`:

| entry | test against the formula |
| --- | --- |
| `Dropout` | `test_dropout_drops_at_rate_and_keeps_the_mean` |
| `LayerNormalization` | `test_normalization_matches_keras` |
| its gradient | `test_normalization_gradients_match_keras` |
| `masked_softmax` | `test_masked_softmax_matches_numpy` |
| its gradient | `test_masked_softmax_gradient_is_its_jacobian` |
| `weighted_values` | `test_weighted_values_match_one_softmax_over_all_parts` |
| `mask_to_bias` | `test_mask_to_bias_leaves_allowed_logits_and_hides_the_others` |
| `apply_flattened` | `test_apply_flattened_passes_a_matrix_and_restores_the_axes` |
| `Dense` | `test_dense_matches_keras` |
| `pack_kernel`, `packed_matmul` | `test_packed_kernel_gives_the_same_products` |

Speedups over the formula, alone (`numerics.py`) and in a whole run
(`numerics_runs.py`), where up to 1.04 is noise. No benchmark measures the entries that
are missing here.

| entry | alone | in a run | run |
| --- | --- | --- | --- |
| `Dropout` | 1.52 | 1.04 | training step, tiny |
| `LayerNormalization` | 1.20 | 1.02 | search of 32 sentences, base |
| its gradient | 1.28 | 1.04 | training step, tiny |
| `masked_softmax`, gradient | 1.15 | 1.03 | training step, tiny |
| `weighted_values` | 1.07 | 0.97 | search of 32 sentences, base |
| `Dense`, `apply_flattened` | 0.88 | 1.00 | search of 32 sentences, base |
| `pack_kernel`, `packed_matmul` | 0.91 | 1.46 | search of a sentence, base, XLA |

The modules `gradients` and `activations` contain helpers, which save no time.
"""
