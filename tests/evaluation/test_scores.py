"""BLEU, chrF, and TER against sacreBLEU's command."""

import json
import subprocess
import sys

import pytest

from keras_transformer.evaluation import bleu, chrf, compare_systems, scores, ter

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


LOWERCASE = ["-tok", "intl", "-lc", "--chrf-lowercase", "--ter-case-sensitive"]
LOWERCASE_ARGUMENTS = {
    "bleu": {"tokenize": "intl", "lowercase": True},
    "chrf": {"lowercase": True},
    "ter": {"case_sensitive": True},
}


@pytest.mark.parametrize(
    ("references", "options", "arguments"),
    [
        ([REFERENCES], [], {}),
        ([REFERENCES], LOWERCASE, LOWERCASE_ARGUMENTS),
        ([REFERENCES, OTHERS], ["-tok", "none"], {"bleu": {"tokenize": "none"}}),
    ],
)
def test_scores_match_the_sacrebleu_command(tmp_path, references, options, arguments):
    paths = []
    for number, lines in enumerate([HYPOTHESES, *references]):
        paths.append(tmp_path / f"text{number}")
        paths[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", *map(str, paths[1:])]
    command += ["-i", str(paths[0]), "-w", "6", "-m", "bleu", "chrf", "ter", *options]
    output = subprocess.run(command, capture_output=True, check=True, text=True)
    for function, expected in zip(
        (bleu, chrf, ter), json.loads(output.stdout), strict=True
    ):
        given = references if len(references) > 1 else references[0]
        result = function(HYPOTHESES, given, **arguments.get(function.__name__, {}))
        assert result.metric == expected["name"]
        assert result.score == pytest.approx(expected["score"], abs=1e-6)
        assert result.signature == expected["signature"]
        assert result.signature.startswith(f"nrefs:{len(references)}|")


ENGLISH = ["The cat sat on the mat.", "It is 東京."]


@pytest.mark.parametrize(
    ("references", "tokenize", "suggested"),
    [
        (["我今天去学校上课。", "他在2024年来了。"], "13a", "zh"),
        (["今日は学校に行きます。", "東京都。"], "intl", "ja-mecab"),
        (["วันนี้ฉันไปโรงเรียน"], "13a", "char"),
        (["我今天去学校上课。"], "zh", None),
        (["我今天 去 学校"], "none", None),
        (ENGLISH, "13a", None),
        (["나는 오늘 학교에 갔다."], "13a", None),
    ],
)
def test_bleu_names_a_tokenizer_for_text_without_spaces(
    caplog, references, tokenize, suggested
):
    scores._warn_once.cache_clear()
    for _ in range(2):  # a training does not repeat the warning
        bleu(references, references, tokenize)
        compare_systems(
            {"a": references, "b": references},
            references,
            tokenize=tokenize,
            num_samples=1,
        )
    messages = [record.getMessage() for record in caplog.records]
    messages = [message for message in messages if "does not split" in message]
    assert len(messages) == (suggested is not None)
    assert suggested is None or f"Use {suggested} (--tokenize" in messages[0]


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a", "b c", "d"], ["a", "", " "], "omits 2 sentence(s)"),
        (["a", "", " "], ["a", "", " "], None),
        (["a", "b", "c"], [["a", "", "c"], ["a", "b", ""]], None),
        (["a", "b", "c"], [["a", "", "c"], ["a", "", ""]], "omits 1 sentence(s)"),
    ],
)
def test_chrf_reports_empty_references(caplog, hypotheses, references, message):
    """sacreBLEU omits them, so that the wrong translations do not lower the score."""
    scores._warn_once.cache_clear()
    assert chrf(hypotheses, references).score == 100
    assert [message in text and text.endswith("is 2") for text in caplog.messages] == (
        [True] if message else []
    )


def test_scores_reject_unpaired_lists():
    for texts, references, message in (
        (HYPOTHESES[:4], REFERENCES, "4 translations, 5 references"),
        ([], [], "0 translations, 0 references"),
        (HYPOTHESES, [REFERENCES, OTHERS[:4]], "5 translations, 5 and 4 references"),
    ):
        for function in (bleu, chrf, ter):
            with pytest.raises(ValueError, match=message):
                function(texts, references)
