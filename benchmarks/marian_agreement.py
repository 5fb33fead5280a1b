"""Compares an imported Marian model with Marian itself.

    python3.11 -m venv marian && marian/bin/pip install pymarian==1.12.42
    KERAS_TRANSFORMER_DATA=... python benchmarks/marian_agreement.py FOLDER \\
      --pymarian marian/bin/pymarian --train

The script trains a small model on Multi30k in FOLDER and imports it. Without `--train`,
FOLDER must contain a trained model. Marian's scorer and decoder and the imported model
receive the SentencePiece pieces of the 1,000 test sentences. For each translation that
differs, `marian_search` shows whether Marian's search rule is the reason. The script
also exports the imported model as a SavedModel and compares the translations of the
SavedModel, in a C program and, with `--python`, in another version of TensorFlow. It
writes benchmarks/results/marian_agreement.json and .md.
"""

import argparse
import pathlib
import tempfile

import machine
import numpy as np
import other_runtimes
import report
import workload
from marian_programs import Marian
from marian_search import marian_search

# (beam size, normalize): the search divides scores by length ** normalize.
SEARCHES = ((1, 0), (1, 1), (4, 0), (4, 1))
# Scores that differ by less count as equal. Rounding causes such differences.
TOLERANCE = 1e-4
BATCH_TOKENS = 4096
# Maximum length of a translation: in this package the source's length plus 50, in
# Marian three times the source's length.
EXTRA_LENGTH, MARIANS_FACTOR = 50, 3


def read_lines(name):
    """Returns the lines of a file of Multi30k."""
    from keras_transformer.pipelines import lines

    folder = workload.data_folder("multi30k")
    return list(lines.read_lines(folder / name))


class Imported:
    """Scoring and search with the imported model, on rows of ids.

    Args:
        imported: An `ImportedModel`.
    """

    def __init__(self, imported):
        from keras_transformer.decoding import SpecialIds
        from keras_transformer.decoding.compiled import compile_for_ids

        self.model, self.tokenizer = imported.model, imported.tokenizer
        self.ids = SpecialIds.of(self.tokenizer.target)
        self._logits = compile_for_ids(
            lambda source, target: self.model(
                {"source_ids": source, "target_ids": target}, training=False
            ),
            num_inputs=2,
        )

    def log_probs(self, source, target):
        """Returns the log-probabilities of the next id at each target position.

        Args:
            source: Rows of ids with their end ids.
            target: Rows of ids without start and end.

        Returns:
            Array `[batch, longest target + 1, vocabulary]`, the first position after
            the start id.
        """
        from keras_transformer.decoding.batches import pad_rows

        logits = self._logits(
            pad_rows(source, self.ids.pad),
            pad_rows([[self.ids.start, *row] for row in target], self.ids.pad),
        ).astype("float64")
        logits -= logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    def word_scores(self, sources, targets):
        """Returns the log-probabilities of each target's ids, including the end id."""
        from keras_transformer.decoding.batches import batch_by_length

        found = [None] * len(sources)
        lengths = list(map(max, map(len, sources), map(len, targets)))
        for batch in batch_by_length(lengths, BATCH_TOKENS):
            log_probs = self.log_probs(
                [sources[i] for i in batch], [targets[i][:-1] for i in batch]
            )
            for i, row in zip(batch, log_probs, strict=True):
                found[i] = row[np.arange(len(targets[i])), targets[i]]
        return found

    def translate(self, sources, search):
        """Returns the best ids of each source, with the end id unless cut off."""
        from keras_transformer.decoding import translate_ids
        from keras_transformer.decoding.batches import batch_by_length, pad_rows
        from keras_transformer.decoding.compiled import compile_for_ids

        run = compile_for_ids(
            lambda ids: translate_ids(self.model, ids, search, self.ids)[0], 1
        )
        found = [None] * len(sources)
        for batch in batch_by_length(list(map(len, sources)), BATCH_TOKENS // 4):
            rows = run(pad_rows([sources[i] for i in batch], self.ids.pad))
            for i, row in zip(batch, rows[:, 0].tolist(), strict=True):
                found[i] = [each for each in row if each != self.ids.pad]
        return found

    def search_by_marians_rule(self, source, beam_size, normalize, max_length):
        """Returns the ids that `marian_search` finds with the imported model."""

        def next_log_probs(rows):
            return self.log_probs([source] * len(rows), rows)[:, -1]

        return marian_search(next_log_probs, self.ids, beam_size, normalize, max_length)


def encode(text, id_of_piece, special):
    """Returns the ids of a text's space-separated pieces, followed by the end id.

    Args:
        text: Pieces, separated by spaces.
        id_of_piece: Mapping of pieces to ids.
        special: `SpecialIds`.
    """
    pieces = filter(None, text.split(" "))
    return [*(id_of_piece.get(piece, special.unknown) for piece in pieces), special.end]


def compare_searches(model, marian, id_of_piece, sources):
    """Yields a row of the result for each of `SEARCHES`."""
    import keras_transformer as kt

    rows = [encode(text, id_of_piece, model.ids) for text in sources]
    for beam_size, normalize in SEARCHES:
        search = kt.BeamSearch(beam_size, float(normalize), "power", None, EXTRA_LENGTH)
        ours = model.translate(rows, search)
        found = marian.decode(sources, beam_size, normalize)
        theirs = [encode(text, id_of_piece, model.ids) for text in found]
        differences = [i for i in range(len(rows)) if ours[i] != theirs[i]]
        print(f"beam {beam_size}, normalize {normalize}: {len(differences)} differ")
        yield {
            "beam_size": beam_size,
            "normalize": normalize,
            "lines": len(rows),
            "differences": [
                explain(model, i, rows[i], ours[i], theirs[i], beam_size, normalize)
                for i in differences
            ],
        }


def explain(model, number, source, ours, theirs, beam_size, normalize):
    """Returns the line number, the reason for the difference, and both scores.

    The reason is "limit" if a maximum length affects a translation, "rule" if Marian's
    search rule finds Marian's translation with the imported model, "tie" if the scores
    are equal except for rounding, or "unexplained".
    """
    words = model.word_scores([source] * 2, [ours, theirs])
    pair = [
        float(each.sum() / len(each) ** normalize) if len(each) else 0.0
        for each in words
    ]
    by_rule = model.search_by_marians_rule(
        source, beam_size, normalize, max_length=MARIANS_FACTOR * len(source)
    )
    limit = min(len(source) + EXTRA_LENGTH, MARIANS_FACTOR * len(source))
    if max(len(ours), len(theirs)) > limit or ours[-1] != model.ids.end:
        reason = "limit"
    elif by_rule == theirs:
        reason = "rule"
    elif abs(pair[0] - pair[1]) < TOLERANCE:
        reason = "tie"
    else:
        reason = "unexplained"
    print(
        f"line {number + 1}, beam {beam_size}, normalize {normalize}: {reason}, {pair}"
    )
    return {"line": number + 1, "reason": reason, "scores": pair}


def compare_scores(model, marian, id_of_piece, sources, targets):
    """Returns the number of compared word scores and the largest difference."""
    expected = marian.word_scores(sources, targets)
    rows = (
        [encode(text, id_of_piece, model.ids) for text in each]
        for each in (sources, targets)
    )
    found = model.word_scores(*rows)
    differences = np.concatenate(
        [np.abs(ours - theirs) for ours, theirs in zip(found, expected, strict=True)]
    )
    return {"words": len(differences), "largest": float(differences.max())}


def compare_exports(imported, lines, python):
    """Counts the lines that the export translates like the model.

    Returns:
        Mapping of runtimes ("C" or a TensorFlow version) to numbers of lines.
    """
    import keras_transformer as kt
    from keras_transformer.export import export_saved_model

    search = kt.BeamSearch(**imported.decoding)
    expected = kt.Translator(
        imported.model, imported.tokenizer, imported.tokenizer.target, search
    ).translate(lines)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        export = export_saved_model(
            imported.model, imported.tokenizer, folder / "export", search
        )
        found = {"C": other_runtimes.translate_in_c(export, lines, folder)}
        for path in python:
            version, texts = other_runtimes.translate_in_python(path, export, lines)
            found[f"TensorFlow {version}"] = texts
    return {
        name: sum(map(str.__eq__, texts, expected)) for name, texts in found.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--pymarian", type=pathlib.Path, required=True)
    parser.add_argument("--train", action="store_true", help="train a model first")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        help="Python with a TensorFlow to load the export; may be repeated",
    )
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    marian = Marian(arguments.pymarian.absolute(), arguments.folder)
    if arguments.train:
        marian.prepare(read_lines("train.en.gz"), read_lines("train.de.gz"))
        marian.train()
    from keras_transformer.interop.from_marian import import_marian

    imported = import_marian(arguments.folder)
    model = Imported(imported)
    sources, targets = (
        read_lines(f"test_2016_flickr.{side}.gz")[: arguments.lines]
        for side in ("en", "de")
    )
    id_of_piece = {
        piece: number for number, piece in enumerate(imported.tokenizer.pieces())
    }
    source_pieces = marian.split(sources, "source")
    # The imported tokenizer must split texts as the library sentencepiece does.
    encoded = imported.tokenizer.tokenize(sources).to_list()
    rows = [encode(text, id_of_piece, model.ids) for text in source_pieces]
    assert [[*row, model.ids.end] for row in encoded] == rows
    scores = compare_scores(
        model, marian, id_of_piece, source_pieces, marian.split(targets, "target")
    )
    print(scores)
    result = {
        "machine": machine.description(),
        "versions": {**report.versions(), "marian": marian.version()},
        "lines": len(sources),
        "scores": scores,
        "searches": list(compare_searches(model, marian, id_of_piece, source_pieces)),
        "exports": compare_exports(imported, sources, arguments.python),
    }
    report.write(arguments.output, "marian_agreement", result)


if __name__ == "__main__":
    main()
