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


def sacrebleu_command(tmp_path, *options):
    """Returns the JSON that the sacreBLEU command prints, with six decimals."""
    hypotheses = tmp_path / "hypotheses"
    references = tmp_path / "references"
    hypotheses.write_text("\n".join(HYPOTHESES) + "\n", encoding="utf-8")
    references.write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", str(references), "-i"]
    command += [str(hypotheses), "-w", "6", *options]
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


def test_scores_reject_unpaired_lists():
    with pytest.raises(ValueError, match="4 translations, 5 references"):
        bleu(HYPOTHESES[:4], REFERENCES)
    with pytest.raises(ValueError, match="0 translations, 0 references"):
        chrf([], [])
