"""Filtering of a noisy corpus, compared with the scores of `Translator.score`."""

import importlib
import json
import os
import pathlib
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from commands import run_command

from keras_transformer import opening as models
from keras_transformer.decoding.scoring import PairScore
from keras_transformer.evaluation.pair_filter import PairFilter
from keras_transformer.pipelines import encode_corpus

pytestmark = pytest.mark.usefixtures("models_stay_open")
# Pairs 1 to 5 and 8 each break one rule of the filter.
PAIRS = [
    (b"der Hund", b"ein Hund"),
    (b"die Katze", b" die  Katze"),  # the same text on both sides
    (b"", b"ein Hund"),  # an empty side
    (b"ein Hund", b" \t"),  # a blank side
    (b"der \xff", b"ein Hund"),  # not UTF-8
    # Very different lengths.
    (b"Hund", b"ein Hund und noch ein Hund und noch ein Hund und noch ein Hund"),
    (b"ein Hund", b"der Hund"),
    (b"der Hund schl\xc3\xa4ft", b"die Katze schl\xc3\xa4ft"),
    (b"Hund " * 30, b"ein Hund " * 20),  # too long for `--max-length 40`
    (b"die Katze", b"schl\xc3\xa4ft"),
]
# Indices of the pairs that pass all rules.
GOOD = [0, 6, 7, 9]


@pytest.fixture
def files(tmp_path):
    """Folder with the pairs' two sides in the files `source` and `target`."""
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_bytes(b"".join(pair[side] + b"\n" for pair in PAIRS))
    return tmp_path


@pytest.fixture
def run_filter(files, tiny_model_file):
    def run(*arguments):
        return run_command(
            *["filter", tiny_model_file, "-s", files / "source"],
            *["-t", files / "target"],
            *["--output-source", files / "out.s", "--output-target", files / "out.t"],
            *["--max-length", "40", *arguments],
        )

    return run


@pytest.fixture
def scores(tiny_model_file):
    """Log-probability per target subword of each pair that passes all rules."""
    texts = [
        [pair[side].decode() for pair in map(PAIRS.__getitem__, GOOD)]
        for side in (0, 1)
    ]
    opened = models.open_model(tiny_model_file)
    lengths = [len(ids) + 1 for ids in opened.tokenizer.tokenize(texts[1]).to_list()]
    found = [one.log_prob for one in opened.score(*texts)]
    return dict(zip(GOOD, np.array(found) / lengths, strict=True))


def kept(files):
    """Returns the indices of the pairs that the command wrote."""
    sides = [(files / name).read_bytes().splitlines() for name in ("out.s", "out.t")]
    return [PAIRS.index(pair) for pair in zip(*sides, strict=True)]


def test_filter_keeps_pairs_above_the_minimum_score(files, run_filter, scores):
    values = sorted(scores.values())
    threshold = (values[1] + values[2]) / 2
    result = run_filter("--min-score", threshold)
    assert result.exit_code == 0, result.stderr
    assert kept(files) == [number for number in GOOD if scores[number] > threshold]
    assert result.stdout.splitlines() == [
        f"2 of 10 pairs kept with a score of at least {threshold:.4f}",
        "1 dropped: not UTF-8 on a side",
        "2 dropped: empty side",
        "1 dropped: same text on both sides",
        "1 dropped: too many subwords on a side",
        "1 dropped: very different lengths of the sides",
        "2 dropped: low model score",
    ]


@pytest.mark.parametrize(("fraction", "count"), [("0.75", 3), ("1", 4)])
def test_filter_keeps_the_best_fraction(files, run_filter, scores, fraction, count):
    result = run_filter("--keep-fraction", fraction, "--json")
    assert result.exit_code == 0, result.stderr
    best = sorted(GOOD, key=scores.get, reverse=True)[:count]
    assert kept(files) == sorted(best)
    report = json.loads(result.stdout)
    assert report["min_score"] == pytest.approx(scores[best[-1]])
    assert (report["pairs"], report["kept"]) == (10, count)
    assert report["dropped"] == {
        **{"invalid_utf8": 1, "empty": 2, "copy": 1, "too_long": 1},
        **{"length_ratio": 1, "improbable": 4 - count},
        **dict.fromkeys(["mojibake", "numbers", "markup", "script", "language"], 0),
        "repeated": 0,
    }


def test_filter_options_relax_its_rules(files, run_filter):
    loose = ["--max-ratio", "99", "--keep-identical", "--max-length", "999"]
    run_filter("--min-score", "-99", *loose)

    assert kept(files) == [0, 1, 5, 6, 7, 8, 9]


def test_filter_writes_kept_lines_unchanged(files, run_filter):
    """Only a byte order mark and the carriage return of a line end are removed."""
    for name in ("source", "target"):
        text = f"\ufeff{name}\r\u2028 Hund\t\r\nder\x0c\x85Hund {name} \r\r\n"
        (files / name).write_bytes(text.encode())
    result = run_filter("--min-score", "-99", "--max-ratio", "99")
    assert result.stdout.startswith("2 of 2 pairs kept"), result.stdout
    for name in ("source", "target"):
        text = f"{name}\r\u2028 Hund\t\nder\x0c\x85Hund {name} \r\n"
        assert (files / f"out.{name[0]}").read_bytes() == text.encode()


def test_filter_syncs_both_outputs_before_it_renames_one(
    files, run_filter, monkeypatch
):
    """A kill between the renames leaves sides of different runs, so it must be rare."""
    synced, unsynced = set(), []
    sync, rename = os.fsync, os.replace

    def spy_sync(descriptor):
        sync(descriptor)
        status = os.fstat(descriptor)
        synced.add((status.st_ino, status.st_size))

    def spy_rename(path, target):
        for each in files.glob(".out-*"):
            status = each.stat()
            if (status.st_ino, status.st_size) not in synced:
                unsynced.append(each.name)
        rename(path, target)

    monkeypatch.setattr(os, "fsync", spy_sync)
    monkeypatch.setattr(os, "replace", spy_rename)
    assert run_filter("--min-score", "-99").exit_code == 0
    assert synced and not unsynced
    assert kept(files) == GOOD


def test_default_limit_drops_what_training_drops(tiny_model, tiny_model_file, tmp_path):
    """The limit of a recipe, `data.max_length`, also counts the end id."""
    _, tokenizer = tiny_model
    pairs = [("Hund " * n, "der Hund") for n in range(1, 9)]
    lengths = [len(ids) for ids in tokenizer.tokenize([s for s, _ in pairs]).to_list()]
    folder = tmp_path / "run"
    shutil.copytree(pathlib.Path(tiny_model_file).parent, folder)
    (folder / "config.yaml").write_text(
        f"data: {{kind: none, max_length: {lengths[4]}}}\n"
    )
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    run_command(
        *["filter", folder, "-s", tmp_path / "source", "-t", tmp_path / "target"],
        *["--output-source", tmp_path / "a", "--output-target", tmp_path / "b"],
        *["--max-ratio", "99", "--keep-fraction", "1"],
        code=0,
    )
    corpus = encode_corpus(
        pairs, tokenizer, tokenizer, tmp_path / "ids", max_length=lengths[4]
    )
    assert len((tmp_path / "a").read_text().splitlines()) == corpus.num_pairs == 4


class Scored:
    """Stand-in for a `Translator`. The text of each target is its pair's score."""

    class tokenizer:
        @staticmethod
        def tokenize(texts):
            class Rows:
                @staticmethod
                def to_list():
                    return [list(text) for text in texts]

            return Rows

    target_tokenizer = tokenizer
    model = SimpleNamespace(position_limit=None)

    def score(self, sources, targets):
        return [PairScore(float(target), 1) for target in targets]


def test_pair_filter_keeps_the_first_of_equal_scores():
    pair_filter = PairFilter(Scored(), max_ratio=9)
    pairs = [("x", each) for each in ("-3", "-1", "-2", "-2", "-2")]
    scores = pair_filter.score(pairs, [True] * 5)
    np.testing.assert_array_equal(scores, [-3, -1, -2, -2, -2])
    # 0.6 of five pairs are three: -1 and the first two of the three equal scores.
    passed, least = pair_filter.select_best(scores, 0.6)
    assert passed.tolist() == [False, True, True, True, False]
    assert (least, pair_filter.num_kept) == (-2, 3)
    assert pair_filter.dropped["improbable"] == 2
    for fraction in (0, 1.5):
        with pytest.raises(ValueError, match=r"`fraction` must be in \(0, 1\]"):
            pair_filter.select_best(scores, fraction)


def test_pair_filter_keeps_pairs_at_its_limits():
    pair_filter = PairFilter(Scored(), max_ratio=3, max_length=7)
    pairs = [("x", "-12"), ("x", "-123"), ("abc", "1"), ("abcd", "1")]
    pairs += [("abcdef", "-12345"), ("abcdefg", "-12345")]
    reasons = pair_filter.check(pairs)
    assert [each is None for each in reasons] == [True, False] * 3
    assert pair_filter.dropped == {"length_ratio": 2, "too_long": 1}


def test_pair_filter_can_drop_all_pairs():
    pair_filter = PairFilter(Scored())
    scores = pair_filter.score([("", ""), (None, "x")], [False, False])
    assert np.all(np.isnan(scores))
    assert pair_filter.select_best(scores, 0.9)[1] is None
    assert not pair_filter.select_above(scores, -99).any()


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("the old bridge near the sea", "die alte Brücke an der See", None),
        ("It costs 1,500 euros.", "Es kostet 1.500 Euro.", None),
        ("It costs 1,500 euros.", "Es kostet 1.600 Euro.", "numbers"),
        ("at two o'clock", "um 2 Uhr", None),
        ("at 14:30, 2 million", "um 14.30 Uhr, 2 000 000", None),
        ("at 2:30", "um 2.40 Uhr", "numbers"),
        (":term:`sea <see>`", ":term:`See <see>`", None),
        (":term:`sea <sea>` &nbsp;", "die alte See", None),
        (":term:`sea <sea>` <br>", "die alte See", "markup"),
        ("<b>the</b> sea &amp; more", "<b>die</b> See &amp; mehr", None),
        ("the sea", "<b>die</b> See", "markup"),
        ("the old bridge", "die alte BrÃ¼cke", "mojibake"),
        ("the bridge\ufffd", "die Brücke", "mojibake"),
        ("the sea \xabIRM\xc3\xbb", "die See", None),
        ("the sea \xc3\xa0", "die See", "mojibake"),
        ("the sea", "die gro\xc3\u0178e See", "mojibake"),
        ("the sea", "die See \xc3\u02c6", "mojibake"),
        ("the old bridge", "старый мост", "script"),
        ("die alte Brücke an der See", "the old bridge near the sea", "language"),
        ("the old bridge near the sea", "the old bridge at the sea", "language"),
    ],
)
def test_pair_filter_checks_texts(source, target, reason):
    pair_filter = PairFilter(Scored(), max_length=99)
    sides = "the old bridge near the sea at", "die alte Brücke an der See um Uhr"
    pair_filter.learn([sides] * 200)
    assert pair_filter.check([(source, target)]) == [reason]


def test_interrupted_filter_is_continued(files, run_filter, monkeypatch):
    """Chunks have two pairs. Of repeated pairs, the first one is kept."""
    command = importlib.import_module("keras_transformer.cli.filter")
    monkeypatch.setattr(command, "CHUNK_SIZE", 2)
    real, calls = PairFilter.score, []
    for name in ("source", "target"):
        (files / name).write_bytes(2 * (files / name).read_bytes())

    def score(self, pairs, is_good):
        calls.append(len(pairs))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, pairs, is_good)

    assert run_filter("--keep-fraction", "0.75").exit_code == 0
    expected, scores = kept(files), (files / "out.s.scores").read_text()
    monkeypatch.setattr(PairFilter, "score", score)
    for path in files.glob("*out.*"):
        path.unlink()
    result = run_filter("--keep-fraction", "0.75")
    assert result.exit_code == 130 and "continue the scoring" in result.stderr
    assert not (files / "out.s").exists()
    result = run_filter("--keep-fraction", "0.75")
    assert result.stdout.startswith("3 of 20 pairs kept"), result.stderr
    assert "4 dropped: repeated pair" in result.stdout
    assert (kept(files), len(calls)) == (expected, 3 + 8)
    assert (files / "out.s.scores").read_text() == scores
    # Another limit needs no new scores.
    assert run_filter("--keep-fraction", "0.5").stdout.startswith("2 of 20 pairs kept")
    assert len(calls) == 3 + 8
    # Other options remove the scores before the first new one.
    del calls[2:]
    for _ in range(2):
        result = run_filter("--keep-fraction", "0.5", "--max-length", "30")
        assert not (files / "out.s.scores").exists() or result.exit_code == 0
        (files / "out.s.scores.part").unlink(missing_ok=True)
    assert (result.exit_code, len(calls)) == (0, 3 + 10)


def test_filter_to_a_device_keeps_no_scores(files, run_filter):
    arguments = "--output-source", "/dev/null", "--min-score", "-99"
    assert run_filter(*arguments).stdout.startswith("4 of 10 pairs kept")
    assert len((files / "out.t").read_text().splitlines()) == 4
    assert not os.path.exists("/dev/null.scores")
    assert not [*files.glob("*.scores")]


def test_pair_filter_counts_nan_scores_as_improbable():
    """A diverged model computes NaN."""
    pair_filter = PairFilter(Scored())
    pairs = [("x", each) for each in ("-3", "nan", "-1")]
    scores = pair_filter.score(pairs, [True] * 3)
    assert pair_filter.select_above(scores, -99).tolist() == [True, False, True]
    assert (pair_filter.num_kept, pair_filter.dropped) == (2, {"improbable": 1})
    passed, least = pair_filter.select_best(scores, 1)
    assert (passed.tolist(), least) == ([True, False, True], -3)
    passed, least = pair_filter.select_best(scores[1:2], 1)
    assert (passed.tolist(), least) == ([False], None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "pass exactly one of --min-score and --keep-fraction"),
        (
            "--keep-fraction 1.5",
            "'--keep-fraction': 1.5: must be above 0 and at most 1",
        ),
        ("--min-score 1 --output-target source", "source: must not be the file of --s"),
        ("--min-score 1 --output-source a/b", "a/b: the folder a does not exist"),
        (
            "--min-score 1 --output-source mine",
            "mine.scores: contains no scores of this command",
        ),
        (
            "--min-score 1 --output-target out.s.scores",
            "out.s.scores: must not be the file of --output-target",
        ),
        ("--min-score 1 --source short", "the same number of lines. Received: 1 and"),
    ],
)
def test_filter_rejects_invalid_arguments(
    files, run_filter, monkeypatch, arguments, message
):
    monkeypatch.chdir(files)
    for name in ("short", "mine.scores"):
        (files / name).write_text("x\n")
    result = run_filter(*arguments.split())
    assert result.exit_code == 2 and message in result.stderr
    assert not (files / "out.s").exists()


def test_interrupted_scores_are_continued(tiny_model_file, tmp_path):
    """An output that ends inside line 4 of 6 is completed, byte for byte."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("der Hund\nein Hund\ndie Katze\n" * 2)
    files = "score", tiny_model_file, "-s", tmp_path / "a", "-t", tmp_path / "b"
    output = tmp_path / "out"
    whole = run_command(*files, code=0).stdout
    assert whole.count("\n") == 6
    command = *files, "-o", output, "--resume"
    assert "perplexity" in run_command(*command, code=0).stderr
    assert output.read_text() == whole
    output.rename(tmp_path / "out.part")
    os.truncate(tmp_path / "out.part", len(whole) // 2 + 3)
    assert "no perplexity" in run_command(*command, code=0).stderr
    assert output.read_text() == whole
    assert "all pairs are already scored" in run_command(*command, code=0).stderr
    (tmp_path / "b").write_text("der Hund\n" * 6)
    assert "made with a different target" in run_command(*command, code=2).stderr
