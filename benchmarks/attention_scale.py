"""Shows why dot products are divided by sqrt(d_k) (section 3.2.1).

    python benchmarks/attention_scale.py

Components of queries and keys are independent with mean 0 and variance 1, as in the
paper's footnote 4. For 64 keys, the script writes the variance of the logits and the
norm of the softmax's gradient to benchmarks/results/attention_scale.csv and .png.
"""

import argparse
import pathlib

import formatting
import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot

from keras_transformer.files import replace_file

KEY_DIMS = [2**n for n in range(1, 13)]
NUM_KEYS, DRAWS = 64, 400


def softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def gradient_norm(logits):
    """Returns the mean Frobenius norm of the softmax's Jacobian, `diag(p) - p p^T`."""
    p = softmax(logits)
    squares = (p**2).sum(axis=-1)
    norm = squares - 2 * (p**3).sum(axis=-1) + squares**2
    # Rounding may make this squared norm negative if one key has all the weight.
    return float(np.sqrt(np.maximum(norm, 0)).mean())


def logits_of(key_dim, rng):
    """Returns the logits `[DRAWS, NUM_KEYS]` of each score function."""
    query = rng.normal(size=(DRAWS, 1, key_dim))
    key = rng.normal(size=(DRAWS, NUM_KEYS, key_dim))
    dot = (query * key).sum(axis=-1)
    weights = rng.normal(size=key_dim)
    return {
        "dot": dot,
        "scaled_dot": dot / np.sqrt(key_dim),
        # Weights with the variance of Glorot's initialization.
        "additive": np.tanh(query + key) @ (weights * np.sqrt(2 / (key_dim + 1))),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, default=formatting.RESULTS)
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    rows = []
    for key_dim in KEY_DIMS:
        for score, logits in logits_of(key_dim, rng).items():
            rows.append((score, key_dim, float(logits.var()), gradient_norm(logits)))
    lines = [["score", "key_dim", "variance", "gradient_norm"]]
    for score, key_dim, variance, norm in rows:
        lines.append([score, key_dim, f"{variance:.4g}", f"{norm:.4g}"])
    formatting.write_rows(output / "attention_scale.csv", lines)
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.8))
    for score in ("dot", "scaled_dot", "additive"):
        _, key_dims, variances, norms = zip(
            *(row for row in rows if row[0] == score), strict=True
        )
        axes[0].loglog(key_dims, variances, "o-", label=score)
        axes[1].loglog(key_dims, norms, "o-", label=score)
    axes[0].loglog(KEY_DIMS, KEY_DIMS, "k:", label="variance = $d_k$")
    axes[0].set_ylabel("variance of the logits")
    axes[1].set_ylabel("mean norm of the softmax's gradient")
    for axis in axes:
        axis.set_xlabel("$d_k$")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    with replace_file(output / "attention_scale.png") as temporary:
        figure.savefig(temporary, dpi=110)


if __name__ == "__main__":
    main()
