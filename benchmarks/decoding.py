"""Compares decoding with this package, CTranslate2 (same weights) and KerasHub.

    pip install ".[bench]"
    KERAS_TRANSFORMER_DATA=... python benchmarks/decoding.py fixed
    python benchmarks/decoding.py real RUN --source test.en --reference test.de

`fixed` measures target tokens per second of a base model with random weights, beam size
4 and exactly 20 output tokens. `real` measures sentences per second and BLEU of a
trained run, whose translations end with the end id. Both write
benchmarks/results/decoding_*.json and .md.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import interleaved
import machine
import report
import workload

BATCHES = (1, 32, 128)
LENGTH = 20
# Source length with the end id; `extra_length=LENGTH - SOURCE` gives `LENGTH` outputs.
SOURCE = 16
# Suffixes of systems and their patience. With 1, the search stops when `beam_size`
# hypotheses have finished, as in CTranslate2.
PATIENCE = {"": None, ", patience 1": 1.0}
OURS = "keras_transformer SavedModel"
# Suffix of systems that compute the parts of a batch in parallel.
IN_PARTS = ", in parts"
# Suffix of an export without `--jit-compile`, which affects single sentences only.
WITHOUT_XLA = ", without XLA"


def fixed_exports(folder):
    """Returns exports of a base model that never predicts the end id, and source ids.

    Returns:
        Tuple of a mapping of system name suffixes to SavedModels, the folder of the
        CTranslate2 model, and source ids `[rows, SOURCE]`.
    """
    import keras
    import numpy as np

    import keras_transformer as kt
    from keras_transformer.export import export_saved_model
    from keras_transformer.interop import export_ctranslate2

    corpus = workload.corpus(folder)
    tokenizer = kt.pipelines.load_tokenizer(folder / "tokenizer")
    keras.utils.set_random_seed(1)
    model = kt.Transformer(workload.VOCABULARY, **workload.settings("base"))
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    embeddings = model.token_embedding.embeddings
    rows = np.array(np.asarray(embeddings))
    # A zero embedding gives the end id the logit 0, which is never among the best of
    # 8,000 normally distributed logits.
    rows[tokenizer.end_id] = 0
    embeddings.assign(rows)
    saved = {
        suffix: export_saved_model(
            model,
            tokenizer,
            folder / f"saved_{compiled}",
            kt.BeamSearch(extra_length=LENGTH - SOURCE),
            parallel_parts=interleaved.THREADS,
            jit_compile=compiled,
        )
        for suffix, compiled in (("", True), (WITHOUT_XLA, False))
    }
    fast = export_ctranslate2(model, tokenizer, folder / "fast")
    chosen = np.flatnonzero(corpus.source_lengths == SOURCE)[: 2 * BATCHES[-1]]
    ids = corpus.rows("source", chosen, SOURCE)
    return saved, fast, ids


def fixed(arguments):
    """Measures translations of exactly `LENGTH` tokens."""
    import numpy as np

    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        saved, fast, ids = fixed_exports(folder)
        systems = start_systems(saved, fast, "ids", 0)
        for batch in BATCHES:
            count = {1: 8, 32: 64}.get(batch, len(ids))
            path = folder / f"ids_{batch}.npy"
            np.save(path, ids[:count])
            rows.append(measure(systems, arguments.rounds, path, batch)[1])
        for each in systems:
            each.close()
    write(arguments, "decoding_fixed", "target tokens/s", rows)


def real(arguments):
    """Measures translations of a trained run, with BLEU."""
    import sacrebleu

    from keras_transformer.export import export_translator
    from keras_transformer.interop import export_ctranslate2
    from keras_transformer.opening import open_model
    from keras_transformer.pipelines.lines import read_lines

    lines = list(read_lines(arguments.source))
    references = list(read_lines(arguments.reference))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = open_model(arguments.run)
        saved = {
            suffix: export_translator(
                model.with_search(
                    beam_size=4, length_penalty=arguments.alpha, patience=patience
                ),
                folder / f"saved_{patience}",
                parallel_parts=interleaved.THREADS,
                jit_compile=True,
            )
            for suffix, patience in PATIENCE.items()
        }
        fast = export_ctranslate2(model.model, model.tokenizer, folder / "fast")
        systems = start_systems(saved, fast, "text", arguments.alpha)
        for batch in BATCHES:
            count = 100 if batch == 1 else len(lines)
            path = folder / f"text_{batch}"
            path.write_text("".join(line + "\n" for line in lines[:count]))
            pieces = subwords(model.tokenizer, lines[:count])
            path.with_name(f"{path.name}.pieces").write_text(json.dumps(pieces))
            measured, row = measure(systems, arguments.rounds, path, batch)
            rows.append(row)
            for metrics, each in zip(row["systems"], measured, strict=True):
                turn = each.turns[-1]
                texts = turn.pop("texts", None)
                if texts is None:
                    texts = join_subwords(model.tokenizer, turn.pop("pieces"))
                bleu = sacrebleu.corpus_bleu(
                    texts, [references[:count]], tokenize=arguments.tokenize
                )
                metrics["bleu"] = bleu.score
        for each in systems:
            each.close()
    write(arguments, arguments.name, "sentences/s", rows)


def subwords(tokenizer, lines):
    """Returns the subwords of each line as texts, without the end id."""
    pieces = tokenizer.pieces()
    return [[pieces[n] for n in row] for row in tokenizer.tokenize(lines).to_list()]


def join_subwords(tokenizer, rows):
    """Returns the text of each row of subwords."""
    import tensorflow as tf

    ids = {piece: number for number, piece in enumerate(tokenizer.pieces())}
    ragged = tf.ragged.constant(
        [[ids[piece] for piece in row] for row in rows], dtype=tf.int32
    )
    return [text.decode() for text in tokenizer.detokenize(ragged).numpy()]


def start_systems(saved, fast, kind, alpha):
    """Starts each system twice: with shared threads, and with one thread per part.

    Args:
        saved: Mapping of system name suffixes to exports.
        fast: Folder of the CTranslate2 model.
        kind: `"ids"` or `"text"`; KerasHub is only measured with ids.
        alpha: Length penalty of CTranslate2.
    """
    ours, ctranslate2 = "peers/decode_ours.py", "peers/decode_ctranslate2.py"
    commands = {
        f"{OURS}{suffix}{parts}": [ours, export, kind, at_once]
        for parts, at_once in (("", 1), (IN_PARTS, interleaved.THREADS))
        for suffix, export in saved.items()
        if not (parts and suffix == WITHOUT_XLA)
    }
    for dtype in ("float32", "int8"):
        name = f"CTranslate2 {dtype}"
        commands[name] = (ctranslate2, fast, kind, dtype, alpha, 1)
        commands[f"{name}{IN_PARTS}"] = (
            *(ctranslate2, fast, kind, dtype, alpha, interleaved.THREADS),
        )
    if kind == "ids":
        kerashub = "peers/decode_kerashub.py"
        commands["KerasHub layers"] = (kerashub, LENGTH, "plain")
        commands["KerasHub layers, XLA"] = (kerashub, LENGTH, "xla")
    systems = []
    for name, command in commands.items():
        print(f"starting {name}", file=sys.stderr)
        systems.append(interleaved.System(name, *command))
    return systems


def measure(systems, rounds, path, batch):
    """Returns the systems that take part, and their metrics at one batch size.

    Single sentences cannot be divided into parts. CTranslate2 translates batches with
    and without parts. This package translates them in parts only, because its small
    operations are slower on two threads than on one.
    """
    systems = [each for each in systems if _takes_part(each.name, batch)]
    for each in systems:
        each.turns.clear()
    print(f"batch {batch}", file=sys.stderr)
    interleaved.take_turns(
        systems, rounds, lambda _: {"path": str(path), "batch": batch}
    )
    return systems, {
        "batch": batch,
        "systems": [
            {
                "name": each.name,
                "rate": interleaved.summary([turn["rate"] for turn in each.turns]),
                "relative_rate": interleaved.ratios(each, systems[0]),
                "peak_mib": each.turns[-1]["peak_mib"],
            }
            for each in systems
        ],
    }


def _takes_part(name, batch):
    in_parts = name.endswith(IN_PARTS)
    if name.startswith(OURS):
        return in_parts == (batch > 1)
    return batch > 1 or not in_parts


def write(arguments, name, unit, rows):
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        "unit": unit,
        "rounds": arguments.rounds,
        "batches": rows,
    }
    report.write(arguments.output, name, result)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default=str(report.RESULTS))
    kinds = parser.add_subparsers(required=True)
    kinds.add_parser("fixed").set_defaults(function=fixed)
    real_parser = kinds.add_parser("real")
    real_parser.add_argument("run", type=pathlib.Path)
    real_parser.add_argument("--source", type=pathlib.Path, required=True)
    real_parser.add_argument("--reference", type=pathlib.Path, required=True)
    real_parser.add_argument("--tokenize", default="none")
    real_parser.add_argument("--alpha", type=float, default=0.6, help="length penalty")
    real_parser.add_argument(
        "--name",
        type=report.result_name,
        default="decoding_real",
        help="result files, a name that begins with decoding (default: %(default)s)",
    )
    real_parser.set_defaults(function=real)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
