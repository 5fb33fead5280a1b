"""Paired significance tests, compared with sacreBLEU's command."""

import json
import os
import random
import re
import subprocess
import sys

import pytest
from commands import error_of, run_command

WORDS = ["der", "Hund", "läuft", "über", "die", "Wiese", "und", "schläft", "im", "Haus"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Folder with two references, two equally good systems, and a worse one."""
    folder = tmp_path_factory.mktemp("systems")
    draw = random.Random(5)
    reference = [
        " ".join(draw.choices(WORDS, k=draw.randint(5, 14))) for _ in range(90)
    ]

    def worsened(share):
        return [
            " ".join(
                draw.choice(WORDS) if draw.random() < share else w for w in line.split()
            )
            for line in reference
        ]

    texts = {"ref": reference, "a": worsened(0.2), "b": worsened(0.2)}
    texts["c"] = worsened(0.45)
    texts["d"] = worsened(0.1)
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return folder


@pytest.fixture
def compare(files):
    def run(*arguments):
        systems = [files / name for name in "abc"]
        return run_command("compare", "-r", files / "ref", *systems, *arguments)

    return run


@pytest.mark.parametrize(
    ("test", "ours", "theirs", "others"),
    [
        ("bs", ["--seed", "7", "--samples", "300"], ["--paired-bs-n", "300"], ""),
        ("bs", ["--samples", "300"], ["--paired-bs-n", "300"], "d"),
        (
            "ar",
            ["--test", "randomization", "--samples", "400"],
            ["--paired-ar-n", "400"],
            "",
        ),
    ],
)
def test_compare_matches_sacrebleu(files, compare, test, ours, theirs, others):
    """`others` are the names of further references."""
    metrics = ["--metric", "bleu", "--metric", "chrf"]
    others = [str(files / name) for name in others]
    options = [each for path in others for each in ("--reference", path)]
    result = compare(*metrics, *ours, *options, "--json")
    assert result.exit_code == 0, result.stderr
    seed = ours[1] if "--seed" in ours else "12345"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sacrebleu", str(files / "ref"), *others),
            *("-i", *(str(files / name) for name in "abc"), f"--paired-{test}"),
            *("-m", "bleu", "chrf", "-f", "latex", "-q", "-w", "8", *theirs),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "SACREBLEU_SEED": seed},
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" & ") for line in done.stdout.splitlines() if " & " in line]
    found = json.loads(result.stdout)
    assert [one["metric"] for one in found] == ["BLEU", "chrF2"]
    for column, one in enumerate(found, start=1):
        signature = re.search(rf" - {one['metric']} +(\S+)", done.stdout)[1]
        assert one["signature"] == signature
        for system, row in zip(one["systems"], rows[1:], strict=True):
            our_numbers = [
                system[name]
                for name in ("score", "mean", "interval", "p_value")
                if system[name] is not None
            ]
            their_numbers = [
                float(each) for each in re.findall(r"\d+\.\d+", row[column])
            ]
            # sacreBLEU rounds p-values to four decimals, an error of at most 5e-5.
            assert our_numbers == pytest.approx(their_numbers, abs=6e-5)
            assert row[0].endswith(os.path.basename(system["name"]))
            assert (system["p_value"] is None) == ("Baseline" in row[0])


def test_compare_prints_a_line_per_system(compare, files):
    result = compare("--samples", "200")
    head, *rows = result.stdout.splitlines()
    assert head.startswith("BLEU  nrefs:1|bs:200|seed:12345|case:mixed|eff:no|tok:13a|")
    assert len(rows) == 3
    assert rows[0].startswith(str(files / "a")) and rows[0].endswith("baseline")
    p_values = [float(row.rpartition("p = ")[2]) for row in rows[1:]]
    assert p_values[1] < 0.01 < p_values[0]
    assert "SACREBLEU_SEED" not in os.environ


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_compare_finds_no_difference_between_equal_scores(files, tmp_path, test):
    lines = (files / "a").read_text("utf-8").splitlines()
    # The two texts differ only in their first lines, which share no word with the
    # reference, so their scores are equal.
    texts = {"a": ["x y z", *lines[1:]], "b": ["u v w", *lines[1:]]}
    texts["same"] = texts["a"]
    for name, text in texts.items():
        (tmp_path / name).write_text("\n".join(text) + "\n", "utf-8")
    result = run_command(
        *("compare", "-r", files / "ref", "--json", "--test", test, "--samples", "50"),
        *(tmp_path / name for name in texts),
    )
    (found,) = json.loads(result.stdout)
    assert [each["p_value"] for each in found["systems"]] == [None, 1.0, 1.0]


def test_compare_warns_of_few_sentences(tmp_path):
    # Three sentences have eight swaps, of which two give the observed difference, so
    # that an exact test could not find any difference significant.
    command = ["compare", "-r", tmp_path / "ref", tmp_path / "a", tmp_path / "b"]
    for count in (3, 30):
        for name, line in (("ref", "a b c d"), ("a", "a b c d"), ("b", "x y")):
            (tmp_path / name).write_text(f"{line}\n" * count)
        result = run_command(*command, "--samples", "20", code=0)
        warning = "warning: intervals and p-values need at least 30 sentences. "
        assert (f"{warning}Received: 3\n" == result.stderr) == (count == 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{files}/a", "pass a baseline and at least one other system"),
        ("{files}/a {files}/a", "the same path was passed twice"),
        (
            "{files}/a {folder}/short",
            "must have the same number of lines. Received: 90",
        ),
        ("{files}/a {folder}/none", "none: no such file"),
        (
            "{files}/a {files}/b -m ter --tokenize char",
            "--tokenize: needs --metric bleu",
        ),
        (
            "{files}/a {files}/b -m ter --lowercase",
            "--lowercase: needs --metric bleu or",
        ),
    ],
)
def test_compare_reports_mistakes(files, tmp_path, arguments, message):
    (tmp_path / "short").write_text("x\n")
    words = arguments.format(files=files, folder=tmp_path).split()
    assert message in error_of(run_command("compare", "-r", files / "ref", *words))
