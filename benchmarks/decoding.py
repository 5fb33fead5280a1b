"""Decoding beside CTranslate2, with the same weights, and KerasHub, in turns.

    pip install ".[bench]"
    KERAS_TRANSFORMER_DATA=... python benchmarks/decoding.py fixed
    python benchmarks/decoding.py real RUN --source test.en --reference test.de

`fixed`: a base model with random weights, beam 4, exactly 20 output tokens: target
tokens per second; KerasHub's weights are its own. `real`: a trained run with real ends
of sentences: sentences per second and BLEU. Both write
benchmarks/results/decoding_*.json and .md; `--name` tells runs apart.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import machine
import report
import turns
import workload

BATCHES = (1, 32, 128)
LENGTH = 20
# Ids of a source, its end counted: with `LENGTH - SOURCE` more, outputs have `LENGTH`.
SOURCE = 16
# Until no hypothesis can win, or until as many have ended as the beam has, which is the
# rule of CTranslate2.
PATIENCE = {"": None, ", patience 1": 1.0}
OURS = "keras_transformer SavedModel"
# Ends the names of those that take the parts of a batch side by side.
SIDE_BY_SIDE = ", in parts"
# Of an export without `--jit-compile`, which only lone sentences would use.
WITHOUT_XLA = ", without XLA"


def fixed_exports(folder):
    """The exports of a base model that never ends by itself, and its sources."""
    import keras
    import numpy as np

    import keras_transformer as kt
    from keras_transformer.export import export_ctranslate2
    from keras_transformer.export import export_saved_model

    corpus = workload.corpus(folder)
    tokenizer = kt.pipelines.load_tokenizer(folder / "tokenizer")
    keras.utils.set_random_seed(1)
    model = kt.Transformer(workload.VOCABULARY, **workload.settings("base"))
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    embeddings = model.token_embedding.embeddings
    rows = np.array(np.asarray(embeddings))
    # A logit of 0 is never among the best of 8,000 normal ones.
    rows[tokenizer.end_id] = 0
    embeddings.assign(rows)
    saved = {
        end: export_saved_model(
            model,
            tokenizer,
            folder / f"saved_{compiled}",
            kt.BeamSearch(extra_length=LENGTH - SOURCE),
            parallel_parts=turns.THREADS,
            jit_compile=compiled,
        )
        for end, compiled in (("", True), (WITHOUT_XLA, False))
    }
    fast = export_ctranslate2(model, tokenizer, folder / "fast")
    chosen = np.flatnonzero(corpus.source_lengths == SOURCE)[: 2 * BATCHES[-1]]
    ids = corpus.rows("source", chosen, SOURCE)
    return saved, fast, ids


def fixed(arguments):
    import numpy as np

    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        saved, fast, ids = fixed_exports(folder)
        found = contestants(saved, fast, "ids", 0)
        for batch in BATCHES:
            count = {1: 8, 32: 64}.get(batch, len(ids))
            path = folder / f"ids_{batch}.npy"
            np.save(path, ids[:count])
            rows.append(measured(found, arguments.rounds, path, batch)[1])
        for each in found:
            each.close()
    write(arguments, "decoding_fixed", "target tokens/s", rows)


def real(arguments):
    import sacrebleu

    from keras_transformer.export import export_ctranslate2
    from keras_transformer.export import export_translator
    from keras_transformer.pipelines.lines import read_lines
    from keras_transformer.saving.open import open_model

    lines = list(read_lines(arguments.source))
    references = list(read_lines(arguments.reference))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = open_model(arguments.run)
        saved = {
            end: export_translator(
                model.with_search(
                    beam_size=4, length_penalty=arguments.alpha, patience=patience
                ),
                folder / f"saved_{patience}",
                parallel_parts=turns.THREADS,
                jit_compile=True,
            )
            for end, patience in PATIENCE.items()
        }
        fast = export_ctranslate2(model.model, model.tokenizer, folder / "fast")
        found = contestants(saved, fast, "text", arguments.alpha)
        for batch in BATCHES:
            count = 100 if batch == 1 else len(lines)
            path = folder / f"text_{batch}"
            path.write_text("".join(line + "\n" for line in lines[:count]))
            pieces = sub_words(model.tokenizer, lines[:count])
            path.with_name(f"{path.name}.pieces").write_text(json.dumps(pieces))
            there, row = measured(found, arguments.rounds, path, batch)
            rows.append(row)
            for figures, each in zip(row["contestants"], there, strict=True):
                told = each.turns[-1]
                texts = told.pop("texts", None)
                if texts is None:
                    texts = joined(model.tokenizer, told.pop("pieces"))
                bleu = sacrebleu.corpus_bleu(
                    texts, [references[:count]], tokenize=arguments.tokenize
                )
                figures["bleu"] = bleu.score
        for each in found:
            each.close()
    write(arguments, arguments.name, "sentences/s", rows)


def sub_words(tokenizer, lines):
    """The sub-words of each line as texts, without the end of the sentence."""
    pieces = tokenizer.pieces()
    return [[pieces[n] for n in row] for row in tokenizer.tokenize(lines).to_list()]


def joined(tokenizer, rows):
    """The texts that rows of sub-words spell."""
    import tensorflow as tf

    ids = {piece: number for number, piece in enumerate(tokenizer.pieces())}
    ragged = tf.ragged.constant(
        [[ids[piece] for piece in row] for row in rows], dtype=tf.int32
    )
    return [text.decode() for text in tokenizer.detokenize(ragged).numpy()]


def contestants(saved, fast, what, alpha):
    """Ours and CTranslate2, each with both ways to use the threads.

    `saved` are exports by the ends of their names. Of ids KerasHub's sampler, too.
    """
    ours, ctranslate2 = "peers/decode_ours.py", "peers/decode_ctranslate2.py"
    commands = {
        f"{OURS}{end}{parts}": [ours, export, what, at_once]
        for parts, at_once in (("", 1), (SIDE_BY_SIDE, turns.THREADS))
        for end, export in saved.items()
        if not (parts and end == WITHOUT_XLA)
    }
    for kind in ("float32", "int8"):
        name = f"CTranslate2 {kind}"
        commands[name] = (ctranslate2, fast, what, kind, alpha, 1)
        commands[f"{name}{SIDE_BY_SIDE}"] = (
            *(ctranslate2, fast, what, kind, alpha, turns.THREADS),
        )
    if what == "ids":
        commands["KerasHub layers"] = ("peers/decode_kerashub.py", LENGTH)
    found = []
    for name, command in commands.items():
        print(f"starting {name}", file=sys.stderr)
        found.append(turns.Contestant(name, *command))
    return found


def measured(found, rounds, path, batch):
    """The contestants, with their turns, and their figures at one batch size.

    One sentence has no parts; of batches ours is measured in parts only, since small
    operations take longer on two threads than on one.
    """
    found = [each for each in found if _takes_part(each.name, batch)]
    for each in found:
        each.turns.clear()
    print(f"batch {batch}", file=sys.stderr)
    turns.take_turns(found, rounds, lambda _: {"path": str(path), "batch": batch})
    return found, {
        "batch": batch,
        "contestants": [
            {
                "name": each.name,
                "rate": turns.summary([turn["rate"] for turn in each.turns]),
                "against_ours": turns.ratios(each, found[0]),
                "peak_mib": each.turns[-1]["peak_mib"],
            }
            for each in found
        ],
    }


def _takes_part(name, batch):
    in_parts = name.endswith(SIDE_BY_SIDE)
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
    with_bleu = "bleu" in rows[0]["contestants"][0]
    head = ["batch", "what", f"{unit} (lowest-highest)", "ours is", "peak MiB"]
    lines = [
        [
            row["batch"],
            each["name"],
            report.spread(each["rate"]),
            f"{1 / each['against_ours']['median']:.2f} x",
            f"{each['peak_mib']:,.0f}",
            *([f"{each['bleu']:.2f}"] if with_bleu else []),
        ]
        for row in rows
        for each in row["contestants"]
    ]
    table = report.table([*head, *(["BLEU"] if with_bleu else [])], lines)
    report.write(arguments.output, name, result, table)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default=str(report.RESULTS))
    kinds = parser.add_subparsers(required=True)
    kinds.add_parser("fixed").set_defaults(function=fixed)
    of_run = kinds.add_parser("real")
    of_run.add_argument("run", type=pathlib.Path)
    of_run.add_argument("--source", type=pathlib.Path, required=True)
    of_run.add_argument("--reference", type=pathlib.Path, required=True)
    of_run.add_argument("--tokenize", default="none")
    of_run.add_argument("--alpha", type=float, default=0.6)
    of_run.add_argument("--name", default="decoding_real", help="of the result's files")
    of_run.set_defaults(function=real)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
