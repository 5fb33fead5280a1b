"""Tiny random models in the file formats of Marian and Hugging Face.

The arrays have Marian's names. `logits` implements Marian's model and Hugging Face's
`MarianMTModel` in NumPy, as a reference for imported and exported models.
"""

import functools
import io
import json
import tarfile

import numpy as np
import pytest
import sentencepiece

PIECES = ("</s>", "<unk>", "▁a", "▁b", "c", "d", ">>fra<<", "e", "▁", "▁ab", "f")
WIDTH, INNER, HEADS, LAYERS = 8, 12, 2, (2, 1)
# Source ids with the end id, and target ids without it.
SOURCE, TARGET = [2, 4, 9, 7, 0], [3, 10, 5, 2]
HOSTILE_TEXTS = [
    *("ab cd", "  a  b ", "", " ", "a\tb\nc", ">>fra<< ab", ">>fra<<ab", ">>xyz<< a"),
    *(">>fra ab", "a >>fra<< b", ">>fra<< >>fra<< a", ">>\n<< a", "ﬁ ａｂ ①", "日本 a"),
    *("\u2581a", "a\u200bb", "e\u0301 f", "\u00a0a\u3000b", "A B", "x" * 50, ">><<a"),
    *("a\x00b", "<<a>>", "\ufeffab", "😀 ab\u202e", ">>fra<<", "a\u2028b"),
]
HUGGINGFACE_MODELS = {
    "tied": {},
    "relu": {"activation": "relu"},
    "gelu": {"activation": "gelu"},
    "two vocabularies": {"shared": False},
}
SETTINGS = {
    "type": "transformer",
    "dim-emb": WIDTH,
    "dim-vocabs": [len(PIECES), len(PIECES)],
    "enc-depth": LAYERS[0],
    "dec-depth": LAYERS[1],
    "transformer-heads": HEADS,
    "transformer-dim-ffn": INNER,
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-tied-layers": [],
    "tied-embeddings-all": True,
    "version": "v1.12.0 2024-01-01",
}
DECODER = """relative-paths: true
models: [model.npz]
vocabs: [vocab.yml, vocab.yml]
beam-size: 3
normalize: 0.6
word-penalty: 0
"""


def extract_golden(data_dir, folder):
    """Extracts models that Marian wrote, with its scores and translations.

    Returns the folder. Skips the test if the archive is missing.
    """
    path = data_dir / "marian" / "golden_marian.tgz"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return folder / "golden"


def random_arrays(tied=True, shared=True, embedding_norm=False, seed=4):
    """Returns {Marian's name: random float32 array} of a model of the sizes above."""
    generator = np.random.default_rng(seed)

    def draw(*shape):
        # Rounded to values that float16 stores exactly.
        return generator.normal(size=shape).astype("float16").astype("float32")

    arrays, size = {}, len(PIECES)
    for name in ("Wemb",) if shared else ("encoder_Wemb", "decoder_Wemb"):
        arrays[name] = draw(size, WIDTH)
    if not tied:
        arrays["decoder_ff_logit_out_Wt"] = draw(size, WIDTH)
    arrays["decoder_ff_logit_out_b"] = draw(1, size) / 4

    def norm(name, end=""):
        arrays[f"{name}_ln_scale{end}"] = 1 + draw(1, WIDTH) / 4
        arrays[f"{name}_ln_bias{end}"] = draw(1, WIDTH)

    for side, layers in zip(("encoder", "decoder"), LAYERS, strict=True):
        if embedding_norm:
            norm(f"{side}_emb", "_pre")
        for number in range(1, layers + 1):
            prefix = f"{side}_l{number}"
            for kind in ("self", "context")[: 1 + (side == "decoder")]:
                for letter in "qkvo":
                    arrays[f"{prefix}_{kind}_W{letter}"] = draw(WIDTH, WIDTH) / 2
                    arrays[f"{prefix}_{kind}_b{letter}"] = draw(1, WIDTH)
                norm(f"{prefix}_{kind}_Wo")
            for digit, shape in (("1", (WIDTH, INNER)), ("2", (INNER, WIDTH))):
                arrays[f"{prefix}_ffn_W{digit}"] = draw(*shape) / 2
                arrays[f"{prefix}_ffn_b{digit}"] = draw(1, shape[1])
            norm(f"{prefix}_ffn_ffn")
    return arrays


def logits(
    arrays,
    source,
    target,
    engine="marian",
    activation="swish",
    layers=range(1, LAYERS[1] + 1),
):
    """Returns the logits after the start and after each id of `target`.

    Args:
        arrays: Dict of arrays keyed by Marian's names.
        source: Ids with the end id.
        target: Ids without start and end.
        engine: "marian" or "huggingface".
        activation: "swish", "relu", "gelu" (by erf) or "quick_gelu".
        layers: Numbers of the decoder's layers, in order. A layer may run repeatedly.

    Returns:
        `[len(target) + 1, len(PIECES)]`, float64.
    """
    epsilon = {"marian": 1e-6, "huggingface": 1e-5}[engine]
    numbers = np.arange(WIDTH // 2)
    exponents = {
        "marian": numbers / (WIDTH // 2 - 1),
        "huggingface": 2 * numbers / WIDTH,
    }

    def norm(x, name, end=""):
        if f"{name}_ln_scale{end}" not in arrays:
            return x
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)
        return x * arrays[f"{name}_ln_scale{end}"] + arrays[f"{name}_ln_bias{end}"]

    def embed(vectors, side):
        angles = np.arange(len(vectors))[:, None] * 10000.0 ** -exponents[engine]
        positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        return norm(vectors * np.sqrt(WIDTH) + positions, f"{side}_emb", "_pre")

    def attend(x, memory, prefix, causal):
        q, k, v = (
            y @ arrays[f"{prefix}_W{letter}"] + arrays[f"{prefix}_b{letter}"]
            for y, letter in ((x, "q"), (memory, "k"), (memory, "v"))
        )
        heads = []
        for part in np.split(np.arange(WIDTH), HEADS):
            scores = q[:, part] @ k[:, part].T / np.sqrt(WIDTH / HEADS)
            if causal:
                scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append(scores / scores.sum(axis=1, keepdims=True) @ v[:, part])
        output = np.concatenate(heads, axis=1)
        output = output @ arrays[f"{prefix}_Wo"] + arrays[f"{prefix}_bo"]
        return norm(x + output, f"{prefix}_Wo")

    def feed_forward(x, prefix):
        inner = x @ arrays[f"{prefix}_W1"] + arrays[f"{prefix}_b1"]
        inner = _ACTIVATIONS[activation](inner)
        inner = inner @ arrays[f"{prefix}_W2"] + arrays[f"{prefix}_b2"]
        return norm(x + inner, f"{prefix}_ffn")

    arrays = {name: array.astype("float64") for name, array in arrays.items()}
    source_matrix = arrays.get("Wemb", arrays.get("encoder_Wemb"))
    target_matrix = arrays.get("Wemb", arrays.get("decoder_Wemb"))
    memory = embed(source_matrix[source], "encoder")
    for number in range(1, LAYERS[0] + 1):
        prefix = f"encoder_l{number}"
        memory = attend(memory, memory, f"{prefix}_self", causal=False)
        memory = feed_forward(memory, f"{prefix}_ffn")
    start = np.zeros((1, WIDTH))
    x = embed(np.concatenate([start, target_matrix[target]]), "decoder")
    for number in layers:
        prefix = f"decoder_l{number}"
        x = attend(x, x, f"{prefix}_self", causal=True)
        x = attend(x, memory, f"{prefix}_context", causal=False)
        x = feed_forward(x, f"{prefix}_ffn")
    output = arrays.get("decoder_ff_logit_out_Wt", target_matrix)
    return x @ output.T + arrays["decoder_ff_logit_out_b"]


def _erf(x):
    import math

    return np.vectorize(math.erf)(x)


_ACTIVATIONS = {
    "swish": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + _erf(x / np.sqrt(2))) / 2,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
}


@functools.cache
def splitter(normalization="nmt_nfkc", **options):
    """Returns the content of a SentencePiece model of a few letters."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b cd ef", "ab cde f", "a ab fed"] * 9),
        model_writer=model,
        vocab_size=13,
        normalization_rule_name=normalization,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def npz(arrays, settings=SETTINGS, padding=b"\0"):
    """Returns the content of Marian's `.npz` file. `settings` may be YAML text."""
    import yaml

    text = settings if isinstance(settings, str) else yaml.safe_dump(settings)
    content = text.encode() + padding
    stored = {**arrays, "special:model.yml": np.frombuffer(content, np.int8)}
    file = io.BytesIO()
    np.savez(file, **stored)
    return file.getvalue()


def write_marian(folder, arrays, settings=SETTINGS, decoder=DECODER):
    """Writes a Marian folder with SentencePiece models and one vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.npz").write_bytes(npz(arrays, settings))
    (folder / "decoder.yml").write_text(decoder)
    lines = [f'"{piece}": {number}\n' for number, piece in enumerate(PIECES)]
    (folder / "vocab.yml").write_text("".join(lines), encoding="utf-8")
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(splitter())
    return folder


def huggingface_arrays(arrays):
    """Renames the arrays to Hugging Face's names and adds a last row for padding."""
    found = {}

    def padded(matrix):
        return np.concatenate([matrix, np.zeros((1, matrix.shape[1]), matrix.dtype)])

    names = {
        "Wemb": "model.shared.weight",
        "encoder_Wemb": "model.encoder.embed_tokens.weight",
        "decoder_Wemb": "model.decoder.embed_tokens.weight",
        "decoder_ff_logit_out_Wt": "lm_head.weight",
    }
    parts = {
        "self": "self_attn",
        "context": "encoder_attn",
        "self_Wo": "self_attn_layer_norm",
        "context_Wo": "encoder_attn_layer_norm",
        "ffn_ffn": "final_layer_norm",
        "ffn": "fc",
    }
    for name, array in arrays.items():
        if name in names:
            found[names[name]] = padded(array)
        elif name == "decoder_ff_logit_out_b":
            found["final_logits_bias"] = padded(array.T).T
        elif "_ln_" in name:
            layer, _, kind = name.rpartition("_ln_")
            side, number, part = layer.split("_", 2)
            kind = {"scale": "weight", "bias": "bias"}[kind]
            prefix = f"model.{side}.layers.{int(number[1:]) - 1}"
            found[f"{prefix}.{parts[part]}.{kind}"] = array[0]
        else:
            side, number, part, kind = name.split("_")
            prefix = f"model.{side}.layers.{int(number[1:]) - 1}"
            letter = {"o": "out"}.get(kind[1], kind[1])
            last = f"fc{letter}" if part == "ffn" else f"{parts[part]}.{letter}_proj"
            value = array.T if kind[0] == "W" else array[0]
            end = "weight" if kind[0] == "W" else "bias"
            found[f"{prefix}.{last}.{end}"] = np.ascontiguousarray(value)
    return found


def huggingface_config(activation="swish", shared=True, tied=True):
    size = len(PIECES)
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "activation_function": activation,
        "d_model": WIDTH,
        "encoder_layers": LAYERS[0],
        "decoder_layers": LAYERS[1],
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": INNER,
        "decoder_ffn_dim": INNER,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "vocab_size": size + 1,
        "decoder_vocab_size": size + 1,
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": tied,
        "pad_token_id": size,
        "decoder_start_token_id": size,
        "eos_token_id": 0,
        "max_position_embeddings": 32,
        "num_beams": 3,
        "length_penalty": 0.5,
        "bad_words_ids": [[size]],
    }


def huggingface_model(name):
    """Returns the arrays, with Marian's names, and the config of a named model."""
    options = HUGGINGFACE_MODELS[name]
    arrays = random_arrays(shared=options.get("shared", True))
    return arrays, huggingface_config(**options)


def safetensors(arrays, dtype="F32"):
    """Returns the content of a safetensors file."""
    header, parts, end = {"__metadata__": {"format": "pt"}}, [], 0
    for name, array in arrays.items():
        kind = "<f2" if dtype == "F16" else "<f4"
        array = np.ascontiguousarray(array, kind)
        if dtype == "BF16":
            # A bfloat16 is the upper half of a float32, here rounded to the nearest.
            array = ((array.view("<u4") + 0x8000) >> 16).astype("<u2")
        parts.append(array.tobytes())
        offsets = [end, end + len(parts[-1])]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def write_huggingface(folder, arrays, config=None, dtype="F32"):
    """Writes a Hugging Face folder; `arrays` have Marian's names."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config or huggingface_config()
    (folder / "config.json").write_text(json.dumps(config))
    content = safetensors(huggingface_arrays(arrays), dtype)
    (folder / "model.safetensors").write_bytes(content)
    numbers = {piece: number for number, piece in enumerate((*PIECES, "<pad>"))}
    names = ["vocab.json"]
    if not config["share_encoder_decoder_embeddings"]:
        names.append("target_vocab.json")
        (folder / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
    for name in names:
        (folder / name).write_text(json.dumps(numbers))
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(splitter())
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n")
    return folder
