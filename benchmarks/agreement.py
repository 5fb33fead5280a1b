"""Compares translations of a run and of its CTranslate2 export.

    pip install ".[bench]"
    python benchmarks/agreement.py RUN --source test.en

Both systems search with beam size 4 and length penalty 0, so both look for the most
probable translation. If the translations of a line differ, their log-probabilities
show which system found the better one. The script writes
benchmarks/results/agreement.json and .md.
"""

import argparse
import pathlib
import tempfile

import decoding
import machine
import report

BEAM_SIZE = 4
# Log-probabilities that differ by at most this count as equal. Rounding and the epsilon
# of layer normalization cause such differences.
TOLERANCE = 1e-3


def translate_with_ctranslate2(folder, tokenizer, lines):
    """Returns CTranslate2's texts and log-probabilities."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), device="cpu", inter_threads=1)
    results = translator.translate_batch(
        decoding.subwords(tokenizer, lines),
        max_batch_size=32,
        beam_size=BEAM_SIZE,
        length_penalty=0,
        return_scores=True,
        disable_unk=True,
        min_decoding_length=0,
    )
    texts = decoding.join_subwords(
        tokenizer, [result.hypotheses[0] for result in results]
    )
    return texts, [result.scores[0] for result in results]


def reason(ours, theirs):
    """Returns which of two different translations is more probable."""
    if abs(ours - theirs) <= TOLERANCE:
        return "tie"
    return "ours" if ours > theirs else "theirs"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    from keras_transformer.interop import export_ctranslate2
    from keras_transformer.opening import open_model
    from keras_transformer.pipelines.lines import read_lines

    lines = list(read_lines(arguments.source))
    model = open_model(arguments.run)
    with tempfile.TemporaryDirectory() as name:
        folder = export_ctranslate2(
            model.model, model.tokenizer, pathlib.Path(name) / "fast"
        )
        texts, scores = translate_with_ctranslate2(folder, model.tokenizer, lines)
    translator = model.with_search(beam_size=BEAM_SIZE, length_penalty=0.0)
    found = translator.n_best(lines, 1)
    differences = []
    pairs = zip(found, texts, scores, strict=True)
    for number, ((ours, *_), text, score) in enumerate(pairs, 1):
        if ours.text != text:
            why = reason(ours.score, score)
            # The license of a corpus may forbid copies: texts are printed, not stored.
            print(f"line {number}, {why}: {ours.text!r} against {text!r}")
            differences.append({"line": number, "reason": why})
            differences[-1]["log_probabilities"] = [ours.score, score]
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        "lines": len(lines),
        "differences": differences,
    }
    report.write(arguments.output, "agreement", result)


if __name__ == "__main__":
    main()
