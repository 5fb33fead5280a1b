"""Tiny random models of M2M100, NLLB and mBART-50 in Hugging Face's format."""

import functools
import io
import json

import numpy as np
import sentencepiece
from toolkit_models import safetensors

WIDTH, INNER, HEADS, POSITIONS = 16, 24, 2, 40
# Models to compare: the three kinds, and one whose three matrices differ.
MODELS = ("m2m100", "nllb", "mbart50", "nllb untied")
# Layers of encoder and decoder, the SentencePiece algorithm, the activation, and a
# factor that makes the end id likely enough.
KINDS = {
    "m2m100": ((2, 2), "bpe", "relu", 3),
    "nllb": ((2, 3), "bpe", "relu", 1),
    "mbart50": ((2, 2), "unigram", "gelu", 3),
}
LANGUAGES = {
    "m2m100": ["__af__", "__am__", "__en__", "__fr__"],
    # Like the original codes, these are not sorted.
    "nllb": ["eng_Latn", "fao_Latn", "pes_Arab", "fra_Latn", "deu_Latn"],
    "mbart50": ["ar_AR", "en_XX", "fr_XX"],
}
# Default languages of each model: source and target.
DEFAULTS = {
    "m2m100": ("en", "fr"),
    "nllb": ("eng_Latn", "fra_Latn"),
    "mbart50": ("en_XX", "fr_XX"),
}
CLASSES = {
    "m2m100": "M2M100Tokenizer",
    "nllb": "NllbTokenizer",
    "mbart50": "MBart50Tokenizer",
}
UNTIED = (
    "lm_head.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
SENTENCES = (
    *("The quick brown fox jumps over the lazy dog.", "A man rides a bike, slowly."),
    *("Zwei Hunde laufen über die Straße.", "Ein Mann fährt Rad: 3,5 km!"),
    *("Les enfants jouent à la balle.", "Où est la gare ?", "Two dogs run (fast)."),
)
# Strings of many kinds, in each of `PLACES`.
ODD = (
    # control characters and spaces
    *("\0", "\1", "\t", "\n", "\r\n", "\v", "\x1b[0m", "\x7f", "\x85", "\x9f"),
    *(" ", "  ", "\xa0", "\u1680", "\u2003", "\u2009", "\u200b", "\u2028", "\u2029"),
    *("\u202f", "\u205f", "\u3000", "\ufeff"),
    # joiners, directions and combining marks
    *("\u200c", "\u200d", "\u2060", "\xad", "\u034f", "\u200e", "\u202e", "\u0301"),
    *("e\u0301", "é", "o\u0302\u0323", "ก\u0e33", "\u3099", "か\u3099", "\u0300" * 20),
    # characters that NFKC replaces
    *("ﬁ", "ａ", "①", "½", "\u2126", "\u212b", "\u1e9b\u0323", "ｶﾞ", "㎒", "…"),
    *("²", "ﷺ"),
    # scripts and emoji
    *("日本", "שלום", "سلام", "नमस्ते", "안녕", "\u1112\u1161\u11ab", "Жз", "ქ"),
    *("ἀ", "𠀀"),
    *("😀", "👩\u200d👧", "🇫🇷", "👍🏽", "1\ufe0f\u20e3", "\u2764\ufe0f"),
    # unassigned and private characters
    *("\ufffd", "\ufffe", "\uffff", "\ue000", "\U0010ffff", "\U000e0041"),
    # like languages and special pieces
    *(">><<", ">>xyz<<", ">>fra_latn<<", ">> fra_Latn<<", ">>fra_Latn <<", ">fr_XX<"),
    *("＞＞fra_Latn<<", "__fr__", "fra_Latn", "fr_XX", ">>a b c<<", "<unused1>", "<"),
    *("<s>", "</s>", "<pad>", "<unk>", "<mask>", "<0x41>", "▁", "▁dog"),
    *("a" * 300, "日" * 200, "!" * 99, " " * 80, "▁" * 40),
)
PLACES = ("{}", "dog{}", "{}dog", "dog {} man", "do{}g", "{0}{0} a")
ODD_TEXTS = tuple(dict.fromkeys(place.format(x) for x in ODD for place in PLACES))


@functools.cache
def splitter(algorithm, size=70, sentences=SENTENCES, **options):
    """Returns the content of a SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences * 3),
        model_writer=model,
        vocab_size=size,
        model_type=algorithm,
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def layout(kind, model=None):
    """Returns a model's SentencePiece model, pieces by id, language ids, and size."""
    model = model or splitter(KINDS[kind][1])
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [library.id_to_piece(n) for n in range(3, len(library))]
    if kind == "m2m100":
        # `vocab.json` has another order than SentencePiece, and lacks a piece.
        pieces = pieces[:-1][::-1]
    pieces = [*SPECIAL, *pieces]
    languages = {
        code: len(pieces) + number for number, code in enumerate(LANGUAGES[kind])
    }
    # The matrices have rows without a piece, and those of NLLB and mBART a mask.
    added = {"m2m100": 8, "nllb": 3, "mbart50": 1}[kind]
    return model, pieces, languages, len(pieces) + len(languages) + added


def random_arrays(kind, size, untied=False, seed=7):
    """Returns {Hugging Face's name: random float32 array}."""
    generator = np.random.default_rng(seed)

    def draw(*shape):
        return generator.normal(size=shape).astype("float32")

    arrays = {"model.shared.weight": draw(size, WIDTH) / 4}
    for name in UNTIED if untied else ():
        arrays[name] = draw(size, WIDTH) / 4
    if kind == "mbart50":
        arrays["final_logits_bias"] = draw(1, size) / 4

    def norm(name):
        arrays[f"{name}.weight"] = 1 + draw(WIDTH) / 4
        arrays[f"{name}.bias"] = draw(WIDTH) / 4

    for side, number_of_layers in zip(
        ("encoder", "decoder"), KINDS[kind][0], strict=True
    ):
        prefix = f"model.{side}"
        if kind == "mbart50":
            arrays[f"{prefix}.embed_positions.weight"] = draw(POSITIONS + 2, WIDTH)
            norm(f"{prefix}.layernorm_embedding")
        for number in range(number_of_layers):
            layer = f"{prefix}.layers.{number}"
            for block in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                for role in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    arrays[f"{layer}.{block}.{role}.weight"] = draw(WIDTH, WIDTH) / 3
                    arrays[f"{layer}.{block}.{role}.bias"] = draw(WIDTH) / 3
                norm(f"{layer}.{block}_layer_norm")
            for name, shape in (("fc1", (INNER, WIDTH)), ("fc2", (WIDTH, INNER))):
                arrays[f"{layer}.{name}.weight"] = draw(*shape) / 3
                arrays[f"{layer}.{name}.bias"] = draw(shape[0]) / 3
            norm(f"{layer}.final_layer_norm")
        norm(f"{prefix}.layer_norm")
    added = KINDS[kind][3] * arrays["model.decoder.layer_norm.bias"]
    arrays[UNTIED[0] if untied else "model.shared.weight"][2] += added
    return arrays


def config(kind, size, target):
    """Returns the content of `config.json`. `target` is the forced language id."""
    (encoder, decoder), _, activation, _ = KINDS[kind]
    found = {
        "model_type": "mbart" if kind == "mbart50" else "m2m_100",
        "activation_function": activation,
        "d_model": WIDTH,
        "encoder_layers": encoder,
        "decoder_layers": decoder,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": INNER,
        "decoder_ffn_dim": INNER,
        "scale_embedding": True,
        "vocab_size": size,
        "max_position_embeddings": POSITIONS,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_bos_token_id": target,
        "num_beams": 4,
        "early_stopping": True,
    }
    if kind == "mbart50":
        found |= {"normalize_before": True, "add_final_layer_norm": True}
    return found


def write_fairseq(folder, name, model=None):
    """Writes a folder, as those of the Hub, of one of the `MODELS`. Returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    kind, _, untied = name.partition(" ")
    model, pieces, languages, size = layout(kind, model)
    source, target = DEFAULTS[kind]
    names = {code.strip("_"): number for code, number in languages.items()}
    files = {
        "config.json": {
            **config(kind, size, names[target]),
            "tie_word_embeddings": not untied,
        },
        "special_tokens_map.json": {"additional_special_tokens": LANGUAGES[kind]},
        "tokenizer_config.json": {
            "tokenizer_class": CLASSES[kind],
            "src_lang": source,
            "tgt_lang": target,
        },
    }
    if kind == "m2m100":
        files["vocab.json"] = {piece: n for n, piece in enumerate(pieces)}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    content = safetensors(random_arrays(kind, size, bool(untied)))
    (folder / "model.safetensors").write_bytes(content)
    license = "cc-by-nc-4.0" if kind == "nllb" else "mit"
    (folder / "README.md").write_text(f"---\nlicense: {license}\n---\n")
    return folder


def sources(kind, count=8, seed=1):
    """Returns rows of source ids, with the source language and the end id."""
    _, pieces, languages, _ = layout(kind)
    generator = np.random.default_rng(seed)
    first = list(languages.values())[1]
    return [
        [first, *generator.integers(4, len(pieces), 3 + n % 5).tolist(), 2]
        for n in range(count)
    ]


def targets(kind, count=2, seed=2):
    """Returns rows of 6 target ids, with the start id and a language."""
    _, pieces, languages, _ = layout(kind)
    generator = np.random.default_rng(seed)
    first = list(languages.values())[-1]
    return [
        [2, first, *generator.integers(4, len(pieces), 4).tolist()]
        for _ in range(count)
    ]
