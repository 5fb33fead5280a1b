"""Small tokenizers of every kind, and texts that are hard to split."""

import functools
import io

import sentencepiece
from toolkit_models import PIECES, splitter

from keras_transformer.pipelines import (
    CoreOpsBytePairTokenizer,
    KerasHubTokenizer,
    SeparateTokenizers,
    train_tokenizer,
)
from keras_transformer.pipelines.tokenizers.marian import MarianTokenizer

SENTENCES = [
    "Ein Mann fährt Rad.",
    "A man rides a bike, 27 times.",
    "Two dogs run (fast) in the snow!",
    "Zwei Hunde rennen schnell im Schnee.",
    "The man's other dog is 42 years old.",
    "Drei Männer und 13 Hunde: „Hallo“, sagt einer.",
] * 7
NASTY = [
    *("", " ", "   ", " a", "a ", "a  b", "\t", "a\tb", "\n", "a\nb\nc", "\r\n"),
    *("\x00", "a\x00b", "\x7f\x85\u2028\u2029", "\u00a0x\u202f\u00ad\u200b"),
    *("\ufeffx", "\ufffd", "\ufffe\uffff\U0010ffff"),
    # Characters that the tokenizers use as marks.
    *("\u2581", "a\u2581b", "\u2581 \u2581 ", "\u2581x \uf8fe", "\uf8fe"),
    *("\uf8fe0\uf8fe1\u2581\uf8fe", "\ue000\ue0ff", "a\ue041b"),
    *("##a", "a##b ## #", "[PAD] [UNK] [START][END]", "<s></s><pad><unk> <0x41>"),
    *("A", " A", "A b", "A\u2581"),
    # Composed, decomposed and joined characters.
    *("é e\u0301 \u0301", "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪", "日本語のテキスト"),
    *("עברית العربية हिन्दी ไทย", "٣ ५ ½ ⅷ", "1 22 333 4444", "ab" * 200, "x" * 1009),
]


def hub_sentencepiece(**options):
    import keras_hub

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    proto = model.getvalue()
    return keras_hub.tokenizers.SentencePieceTokenizer(proto=proto, **options)


def hub_byte_pairs():
    import keras_hub
    from tokenizers.pre_tokenizers import ByteLevel

    merges = ["h e", "l l", "he ll", "Ġ w", "t he"]
    pieces = [*sorted(ByteLevel.alphabet()), *("".join(m.split()) for m in merges)]
    end = "<|endoftext|>"
    return keras_hub.tokenizers.BytePairTokenizer(
        vocabulary={piece: number for number, piece in enumerate([*pieces, end])},
        merges=merges,
        unsplittable_tokens=[end],
    )


def hub_word_pieces():
    import keras_hub

    letters = "abcdefghijklmnopqrstuvwxyzäé0123456789."
    return keras_hub.tokenizers.WordPieceTokenizer(
        [
            *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "quick", "##ck"),
            *(*letters, *(f"##{letter}" for letter in letters)),
        ],
        lowercase=True,
    )


# Functions that make a KerasHub tokenizer, and its ids for padding, unknown, start and
# end.
HUB_MAKERS = {
    "hub sentencepiece": (hub_sentencepiece, (None, 0, 1, 2)),
    "hub byte pairs": (hub_byte_pairs, (None, None, 261, 261)),
    "hub word pieces": (hub_word_pieces, (0, 1, 2, 3)),
}
# These restore every text.
LOSSLESS = ("bpe", "bpe digits", "word_piece", "word_piece digits", "core", "separate")
KINDS = (*LOSSLESS, "marian", "marian spaces", *HUB_MAKERS)


@functools.cache
def make(name):
    """Returns the tokenizer of a kind. All tests of a process share it."""
    if name in HUB_MAKERS:
        make_hub, special_ids = HUB_MAKERS[name]
        return KerasHubTokenizer(make_hub(), *special_ids)
    if name == "core":
        return CoreOpsBytePairTokenizer(make("bpe"))
    if name == "separate":
        other = train_tokenizer("bpe", SENTENCES[::2], 330)
        return SeparateTokenizers(make("bpe"), other)
    if name == "marian opus":
        words = ("</s>", "<unk>", "a", "b")
        return MarianTokenizer((PIECES, splitter()), (words, None), "opus", "fra")
    if name.startswith("marian"):
        side = (PIECES, splitter() if name == "marian" else None)
        return MarianTokenizer(side, side)
    kind, _, digits = name.partition(" ")
    return train_tokenizer(kind, SENTENCES, 380, split_digits=bool(digits))


def decode(texts):
    return [text.decode() for text in texts.numpy()]
