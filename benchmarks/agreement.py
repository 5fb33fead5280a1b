"""Whether CTranslate2 translates as the model it was exported from does.

    pip install ".[bench]"
    python benchmarks/agreement.py RUN --source test.en

Beam 4 at length penalty 0, where the two programs want the same: the most probable
translation. Each line on which they differ is put down to one of three reasons by the
log-probabilities that the programs give their translations. Writes
benchmarks/results/agreement.json and .md.
"""

import argparse
import collections
import pathlib
import tempfile

import decoding
import machine
import report

BEAM_SIZE = 4
# Of log-probabilities; the programs sum in another order.
TOLERANCE = 1e-3
REASONS = {
    "tie": "equally probable",
    "ours": "ours is more probable: their search lost or ended before it",
    "theirs": "theirs is more probable: our search lost or ended before it",
}


def by_ctranslate2(folder, tokenizer, lines):
    """CTranslate2's texts and log-probabilities."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), device="cpu", inter_threads=1)
    results = translator.translate_batch(
        decoding.sub_words(tokenizer, lines),
        max_batch_size=32,
        beam_size=BEAM_SIZE,
        length_penalty=0,
        return_scores=True,
        disable_unk=True,
    )
    texts = decoding.joined(tokenizer, [result.hypotheses[0] for result in results])
    return texts, [result.scores[0] for result in results]


def reason(ours, theirs):
    """Why two different translations of these log-probabilities were found."""
    if abs(ours - theirs) <= TOLERANCE:
        return "tie"
    return "ours" if ours > theirs else "theirs"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    from keras_transformer.export import export_ctranslate2
    from keras_transformer.pipelines.lines import read_lines
    from keras_transformer.saving.open import open_model

    lines = list(read_lines(arguments.source))
    model = open_model(arguments.run)
    with tempfile.TemporaryDirectory() as name:
        folder = export_ctranslate2(
            model.model, model.tokenizer, pathlib.Path(name) / "fast"
        )
        texts, scores = by_ctranslate2(folder, model.tokenizer, lines)
    translator = model.with_search(beam_size=BEAM_SIZE, length_penalty=0.0)
    found = translator.n_best(lines, 1)
    differences = []
    pairs = zip(found, texts, scores, strict=True)
    for number, ((ours, *_), text, score) in enumerate(pairs, 1):
        if ours.text != text:
            why = reason(ours.score, score)
            # The corpora may not be passed on: their text is shown, never written.
            print(f"line {number}, {why}: {ours.text!r} against {text!r}")
            differences.append({"line": number, "reason": why})
            differences[-1]["log_probabilities"] = [ours.score, score]
    counts = collections.Counter(each["reason"] for each in differences)
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        "lines": len(lines),
        "differences": differences,
    }
    rows = [["the same text", len(lines) - len(differences)]]
    rows += [[REASONS[name], counts[name]] for name in REASONS]
    report.write(
        arguments.output,
        "agreement",
        result,
        report.table(
            ["CTranslate2 against the model, length penalty 0", "lines"], rows
        ),
    )


if __name__ == "__main__":
    main()
