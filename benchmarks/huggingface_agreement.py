"""Compares models with Hugging Face transformers, in both directions.

    pip install ".[bench]" transformers==4.57.6
    KERAS_TRANSFORMER_DATA=... python benchmarks/huggingface_agreement.py NAME=PATH ...

The script imports random `MarianMTModel`s and compares their outputs before and after
the import. It also exports each model given as NAME=PATH or NAME=PATH=TEXT. PATH is a
run, a folder that `keras-transformer import` wrote, or `phrases`, a packaged model.
`generate` of transformers and this package then translate the first 1,000 lines of the
file TEXT, greedily and with beam size 4, without length penalty. By default, TEXT is
the test text of Multi30k and, for `phrases`, phrases. The script writes
benchmarks/results/huggingface_agreement.json and .md.
"""

import argparse
import importlib.metadata
import json
import pathlib
import tempfile

import machine
import numpy as np
import report
import workload
from agreement import reason

LINES = 1000
BEAM_SIZES = (1, 4)
# Encoder layers, decoder layers, activation, `tied` and `shared` of `write_random`.
RANDOM_MODELS = (
    (2, 2, "swish", True, True),
    (2, 2, "relu", True, True),
    (2, 2, "gelu", True, True),
    (6, 6, "swish", True, True),
    (6, 2, "swish", True, True),
    (2, 2, "swish", False, True),
    (2, 2, "swish", True, False),
    (2, 2, "swish", False, False),
)
WORDS = [f"▁w{number}" for number in range(40)]


def write_random(folder, layers, activation, tied, shared, seed=1):
    """Writes a random `MarianMTModel` and its tokenizer, with transformers.

    Args:
        folder: Folder to create.
        layers: Numbers of layers of encoder and decoder.
        activation: Name of the activation.
        tied: Whether the output matrix is the target embeddings.
        shared: Whether source and target share the embeddings.
        seed: Seed of the weights.

    Returns:
        The model.
    """
    import torch
    import transformers

    pieces = ["</s>", "<unk>", *WORDS, "<pad>"]
    pad_id = len(pieces) - 1
    torch.manual_seed(seed)
    config = transformers.MarianConfig(
        **{"vocab_size": len(pieces), "d_model": 32, "max_position_embeddings": 64},
        **{"encoder_layers": layers[0], "decoder_layers": layers[1]},
        **{"encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
        **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
        **{"activation_function": activation, "scale_embedding": True},
        **{"tie_word_embeddings": tied, "share_encoder_decoder_embeddings": shared},
        **{"pad_token_id": pad_id, "decoder_start_token_id": pad_id},
        **{"eos_token_id": 0, "forced_eos_token_id": None, "init_std": 0.3},
    )
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        model.final_logits_bias[:, :-1].normal_()
        for name, weight in model.named_parameters():
            if "bias" in name or "layer_norm" in name:
                weight.add_(0.2 * torch.randn_like(weight))
    model.save_pretrained(folder)
    _write_tokenizer(folder, pieces, shared)
    return model


def _write_tokenizer(folder, pieces, shared):
    import sentencepiece

    names = ["vocab.json"] + ["target_vocab.json"] * (not shared)
    numbers = {piece: number for number, piece in enumerate(pieces)}
    for name in names:
        (folder / name).write_text(json.dumps(numbers), encoding="utf-8")
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not shared}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS).replace("▁", "")] * 9),
        model_prefix=str(folder / "source"),
        vocab_size=16,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "source.vocab").unlink()
    (folder / "source.model").rename(folder / "source.spm")
    (folder / "target.spm").write_bytes((folder / "source.spm").read_bytes())


def compare_random(folder, model, num_rows=20, extra_length=15):
    """Compares an imported random model with the original.

    Returns:
        Mapping with the largest difference between logits, the number of logits, the
        number of sources, and the number of different greedy translations.
    """
    import torch

    import keras_transformer as kt
    from keras_transformer.decoding import SpecialIds, translate_ids
    from keras_transformer.interop.from_huggingface import import_huggingface

    imported = import_huggingface(folder)
    ids = SpecialIds.of(imported.tokenizer.target)
    rng = np.random.default_rng(2)
    sources = rng.integers(2, ids.pad, (num_rows, 12)).astype("int32")
    sources[:, -1] = ids.end
    targets = rng.integers(2, ids.pad, (num_rows, 9)).astype("int32")
    start = model.config.decoder_start_token_id
    their_targets, our_targets = targets.copy(), targets.copy()
    their_targets[:, 0], our_targets[:, 0] = start, ids.start
    with torch.no_grad():
        # The last logit belongs to the padding id, which this package does not predict.
        theirs = model(
            input_ids=torch.tensor(sources, dtype=torch.int64),
            decoder_input_ids=torch.tensor(their_targets, dtype=torch.int64),
        ).logits.numpy()[..., :-1]
        greedy = model.generate(
            torch.tensor(sources, dtype=torch.int64),
            num_beams=1,
            do_sample=False,
            max_new_tokens=sources.shape[1] + extra_length,
            bad_words_ids=[[start], [ids.unknown]],
        )[:, 1:]
    ours = np.asarray(
        imported.model({"source_ids": sources, "target_ids": our_targets})
    )
    found, _ = translate_ids(
        imported.model, sources, kt.BeamSearch(1, extra_length=extra_length), ids
    )
    pairs = zip(np.asarray(found)[:, 0].tolist(), greedy.tolist(), strict=True)
    return {
        "largest": float(np.abs(ours - theirs).max()),
        "logits": ours.size,
        "sources": num_rows,
        "different": sum(
            [each for each in our_row if each != ids.pad]
            != [each for each in their_row if each != start]
            for our_row, their_row in pairs
        ),
    }


def split_argument(text):
    """Splits NAME=PATH or NAME=PATH=TEXT.

    Raises:
        ValueError: If there is no NAME=PATH.
    """
    name, path, *text = text.split("=", 2)
    return name, path, *text


def read_sources(path, text=None):
    """Returns the lines of the file `text`, or of the default text of a model."""
    if path == "phrases" and text is None:
        from keras_transformer.recipes import load_recipe
        from keras_transformer.runs.corpora import load_pairs

        pairs = load_pairs(load_recipe(path, ["data.held_out=1000"]).data)["test"]
        return [source for source, _ in pairs][:LINES]
    from keras_transformer.pipelines.lines import read_lines

    text = text or workload.data_folder("multi30k") / "test_2016_flickr.en.gz"
    return list(read_lines(text))[:LINES]


def compare_export(path, lines, folder, in_float32=False):
    """Compares a model with its export in transformers.

    Args:
        path: Model (see `kt.open_model`).
        lines: Texts to translate.
        folder: Folder to write the export to.
        in_float32: Whether this package computes in float32, like transformers,
            whatever the model's setting.

    Returns:
        Mapping with the architecture in transformers, the number of lines and, for
        each beam size, the translations that differ.
    """
    import pretrained
    import transformers

    import keras_transformer as kt
    from keras_transformer.interop import export_huggingface

    translator = kt.open_model(path).with_search(length_penalty=0.0)
    if in_float32:
        translator.model = pretrained.in_float32(translator.model)
    export_huggingface(translator, folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    result = {"architecture": type(model).__name__, "lines": len(lines), "searches": []}
    for beam_size in BEAM_SIZES:
        ours = translator.with_search(beam_size=beam_size).translate(lines)
        theirs = generate(model, tokenizer, lines, beam_size)
        # transformers removes the spaces around its translations.
        different = [i for i in range(len(lines)) if ours[i].strip() != theirs[i]]
        scores = [
            translator.score(
                [lines[i] for i in different], [texts[i] for i in different]
            )
            for texts in (ours, theirs)
        ]
        differences = []
        for i, *pair in zip(different, *scores, strict=True):
            pair = [each.log_prob for each in pair]
            differences.append({"line": i + 1, "log_probabilities": pair})
            differences[-1]["reason"] = reason(*pair)
            print(f"line {i + 1}, {pair}: {ours[i]!r} against {theirs[i]!r}")
        result["searches"].append({"beam_size": beam_size, "differences": differences})
    return result


def generate(model, tokenizer, lines, beam_size, batch_size=25):
    """Translates lines with `model.generate`, in batches of similar lengths."""
    import torch

    texts = [""] * len(lines)
    order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
    for first in range(0, len(lines), batch_size):
        rows = order[first : first + batch_size]
        batch = tokenizer([lines[i] for i in rows], return_tensors="pt", padding=True)
        with torch.no_grad():
            found = model.generate(
                **batch,
                num_beams=beam_size,
                length_penalty=0.0,
                max_new_tokens=batch["input_ids"].shape[1] + 50,
            )
        decoded = tokenizer.batch_decode(found, skip_special_tokens=True)
        for i, text in zip(rows, decoded, strict=True):
            texts[i] = text
    return texts


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "models", nargs="*", type=split_argument, metavar="NAME=PATH[=TEXT]"
    )
    parser.add_argument(
        "--float32", action="store_true", help="compute in float32 in this package"
    )
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    sources = [read_sources(*each) for _, *each in arguments.models]
    result = {"random": [], "exports": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for number, (encoder, decoder, *options) in enumerate(RANDOM_MODELS):
            path = folder / str(number)
            model = write_random(path, (encoder, decoder), *options)
            row = {"layers": [encoder, decoder], "activation": options[0]}
            row |= {"tied": options[1], "shared": options[2]}
            result["random"].append(row | compare_random(path, model))
        for (label, path, *_), lines in zip(arguments.models, sources, strict=True):
            result["exports"][label] = compare_export(
                path, lines, folder / label, arguments.float32
            )
    versions = report.versions()
    versions["transformers"] = importlib.metadata.version("transformers")
    result |= {"machine": machine.description(), "versions": versions}
    report.write(arguments.output, "huggingface_agreement", result)


if __name__ == "__main__":
    main()
