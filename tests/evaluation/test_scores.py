"""BLEU, chrF, and TER against sacreBLEU's command."""

import json
import subprocess
import sys

import pytest

from keras_transformer.evaluation import bleu
from keras_transformer.evaluation import chrf
from keras_transformer.evaluation import ter

HYPOTHESES = [
    "Ein Mann fährt mit dem Fahrrad.",
    "zwei Hunde laufen im Schnee , schnell",
    "",
    "Das kostet 3.50 Euro; 12,5 % mehr!",
    "Eine Frau liest.",
]
REFERENCES = [
    "Ein Mann fährt auf dem Fahrrad.",
    "Zwei Hunde laufen schnell durch den Schnee",
    "Nichts.",
    "Das kostet 3,50 Euro, 12,5 % mehr!",
    "Eine Frau liest ein Buch .",
]


# A second reference for each sentence.
OTHERS = [
    "Ein Mann fährt mit dem Rad.",
    "zwei Hunde rennen im Schnee",
    "Gar nichts.",
    "Das kostet 3.50 Euro; 12 % mehr!",
    "Die Frau liest.",
]


def sacrebleu_command(tmp_path, *options, references=(REFERENCES,)):
    """Returns the JSON that the sacreBLEU command prints, with six decimals."""
    paths = []
    for number, lines in enumerate([HYPOTHESES, *references]):
        paths.append(tmp_path / f"text{number}")
        paths[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", *map(str, paths[1:]), "-i"]
    command += [str(paths[0]), "-w", "6", *options]
    output = subprocess.run(command, capture_output=True, check=True, text=True)
    return json.loads(output.stdout)


@pytest.mark.parametrize(
    ("function", "options", "arguments"),
    [
        (bleu, ["-m", "bleu"], {}),
        (bleu, ["-m", "bleu", "-tok", "none"], {"tokenize": "none"}),
        (
            bleu,
            ["-m", "bleu", "-tok", "intl", "-lc"],
            {"tokenize": "intl", "lowercase": True},
        ),
        (chrf, ["-m", "chrf"], {}),
        (chrf, ["-m", "chrf", "--chrf-lowercase"], {"lowercase": True}),
        (ter, ["-m", "ter"], {}),
        (ter, ["-m", "ter", "--ter-case-sensitive"], {"case_sensitive": True}),
    ],
)
def test_scores_match_the_sacrebleu_command(tmp_path, function, options, arguments):
    expected = sacrebleu_command(tmp_path, *options)
    result = function(HYPOTHESES, REFERENCES, **arguments)
    assert result.metric == expected["name"]
    assert result.score == pytest.approx(expected["score"], abs=1e-6)
    assert result.signature == expected["signature"]


@pytest.mark.parametrize("function", [bleu, chrf, ter])
def test_scores_of_two_references_match_the_sacrebleu_command(tmp_path, function):
    references = [REFERENCES, OTHERS]
    options = ["-m", function.__name__]
    expected = sacrebleu_command(tmp_path, *options, references=references)
    result = function(HYPOTHESES, references)
    assert result.score == pytest.approx(expected["score"], abs=1e-6)
    assert result.signature == expected["signature"]
    assert result.signature.startswith("nrefs:2|")
    with pytest.raises(ValueError, match="5 translations, 5 and 4 references"):
        function(HYPOTHESES, [REFERENCES, OTHERS[:4]])


def test_scores_reject_unpaired_lists():
    with pytest.raises(ValueError, match="4 translations, 5 references"):
        bleu(HYPOTHESES[:4], REFERENCES)
    with pytest.raises(ValueError, match="0 translations, 0 references"):
        chrf([], [])
