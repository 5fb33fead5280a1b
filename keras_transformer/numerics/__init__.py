"""Numerical functions and layers, some of which exist only for speed.

| entry | computes | plain formula |
| --- | --- | --- |
| `Dropout` | dropout, two units per random number | `keras.layers.Dropout` |
| `LayerNormalization` | layer normalization in few passes over memory | Keras's layer |
| `masked_softmax` | the softmax over allowed keys | `softmax(where(mask, x, -inf))` |
| `mask_to_bias` | an attention bias for all layers | `where(mask, 0, -inf)` |
| `weighted_values` | attention over parts of a cache | `softmax(logits) @ values` |
| `best_log_probs` | log-probabilities of a few ids | `log_softmax(logits)[ids]` |
| `pack_kernel`, `packed_matmul` | a product by blocks of columns | `rows @ kernel` |
| `swap_middle_axes` | a transposition | `transpose(x, (0, 2, 1, 3))` |
| `gather`, `shape` | rows and sizes, in few operations | `take(x, i)`, `shape(x)` |

The layers are in the modules `dropout` and `normalization`, the next four entries in
`softmax`, the three after them in `matrices`, and the last two in `indexing`. Four more
modules help: `gradients` has custom gradients for all backends, `seeds` has seeds that
differ between replicas, `activations` looks up activation functions, and `ranges`
limits values to float32.

`Dropout`, `LayerNormalization`, `pack_kernel`, `packed_matmul` and `swap_middle_axes`
exist for speed alone. `benchmarks/numerics_runs.py` measures that each makes a whole
run at least 3% faster. `gather` and `shape` shorten the tracing of a search by a fifth.
"""
