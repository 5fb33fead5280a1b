"""`translate` with a real model gives what the library gives for the same options."""

import importlib
import re

import numpy as np
import pytest
import tiny_export

import keras_transformer as kt
from keras_transformer import opening as models
from keras_transformer import pipelines

pytestmark = pytest.mark.usefixtures("models_stay_open")
SOURCES = ["der Hund läuft", "", "ein Hund und noch ein Hund", "die Katze", "läuft"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_model):
    """Folders of two models with the same vocabulary and one with another."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = tiny_model[1]
    model, second = (tiny_export.tiny_model(num_layers=1)[0] for _ in range(2))
    # Zero embeddings make the byte tokens, ids 4 to 259, improbable, so that the models
    # generate valid text.
    matrix = model.token_embedding.embeddings.numpy()
    matrix[4:260] = 0
    matrix[260:] *= 3
    for each in (model, second):
        each.token_embedding.embeddings.assign(matrix)
    rng = np.random.default_rng(11)
    for weight in second.trainable_weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    other = pipelines.train_tokenizer("bpe", ["xyz abc", "qrst uvw xyz"] * 9, 300)
    paths = [folder / name for name in ("first", "second", "other")]
    for path, each, tokens in zip(
        paths, (model, second, model), (tokenizer, tokenizer, other), strict=True
    ):
        path.mkdir()
        each.save(path / "model.keras")
        tokens.save(path)
    return paths


@pytest.fixture
def translate(run_command, folders):
    """Function that translates `SOURCES` with the first model."""
    stdin = "".join(f"{line}\n" for line in SOURCES)
    return lambda *options: run_command("translate", folders[0], *options, stdin=stdin)


def lines(result):
    assert result.exit_code == 0, result.stderr
    return result.stdout.split("\n")[:-1]


def test_search_options_give_the_results_of_the_library(translate, folders):
    opened = models.open_model(folders[0])
    both = models.open_model(folders[0], ensemble=[folders[1]])
    prefixed = opened.n_best(SOURCES, 1, prefixes=["ein Hund"] * len(SOURCES))
    expected = {
        (): opened.translate(SOURCES),
        ("--beam-size", "1"): opened.with_search(beam_size=1).translate(SOURCES),
        ("--prefix", "ein Hund"): [best.text for (best,) in prefixed],
        ("--ensemble", str(folders[1])): both.translate(SOURCES),
    }
    found = {options: lines(translate(*options)) for options in expected}
    assert found == expected
    assert len(set(map(tuple, found.values()))) == len(expected)


def test_parallel_parts_decode_in_parallel(translate, parallel_counts):
    assert lines(translate("--parallel-parts", "2")) == lines(translate())
    assert 2 in parallel_counts
    refused = translate("--sampling", "--parallel-parts", "2")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--parallel-parts: cannot be used with --sampling" in refused.stderr


def test_prefix_file_has_a_prefix_per_line(translate, tmp_path):
    path, free = tmp_path / "prefixes", lines(translate())
    path.write_text("Hund\nx\n\nnoch ein\n\n", encoding="utf-8")
    found = lines(translate("--prefix-file", path))
    assert found[1] == "" and found[2] == free[2] and found[4] == free[4]
    assert found[0].startswith("Hund") and found[3].startswith("noch ein")
    for text, message in (
        ("a\n", "fewer lines than the input (line 2)"),
        ("a\n" * 9, "more lines than the input (line 6)"),
    ):
        path.write_text(text)
        result = translate("--prefix-file", path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
    # Two files are compared before the translation.
    (tmp_path / "source").write_text("a\nb\n")
    result = translate("--input", tmp_path / "source", "--prefix-file", path)
    assert result.exit_code == 2
    assert f"one prefix per line of {tmp_path}/source. Received: 9 and" in result.stderr


def words(texts):
    """Returns the set of words. U+FFFD, an invalid byte, does not separate words."""
    return {word for text in texts for word in re.findall(r"[\w\ufffd]+", text)}


def test_forbidden_words_are_absent(translate, tmp_path):
    used = sorted(words(lines(translate())))
    (tmp_path / "forbidden").write_text("".join(f"{each}*\n\n" for each in used))
    found = lines(translate("--forbid-file", tmp_path / "forbidden", "--forbid", "x"))
    assert not any(each.startswith(tuple(used)) for each in words(found))
    assert all([found[0], *found[2:]])
    # 20 samples for each of four texts, and one empty translation for the blank text.
    drawn = lines(translate("--forbid", used[-1], "--sampling", "--n-best", "20"))
    assert len(drawn) == 81 and used[-1] not in words(drawn)
    result = translate("--forbid", " * ")
    assert result.exit_code == 2
    assert "' * ' is not a phrase that can be forbidden" in result.stderr


def test_sampling_is_reproducible(translate):
    options = ["--sampling", "--temperature", "0.9", "--top-k", "20", "--top-p", "0.95"]
    found = lines(translate(*options, "--seed", "3"))
    assert found == lines(translate(*options, "--seed", "3"))
    assert found != lines(translate(*options, "--seed", "4"))
    default = lines(translate("--sampling"))
    assert default == lines(translate("--sampling", "--seed", "1"))
    several = lines(translate("--sampling", "--n-best", "3", "--scores"))
    rows = [line.split("\t") for line in several]
    assert [row[0] for row in rows] == list("1112333444555")
    assert all(float(row[1]) < 0 for row in rows if row[0] != "2")
    first = lines(translate("--sampling", "--top-k", "1"))
    assert first == lines(translate("--beam-size", "1"))


def test_sampling_uses_a_seed_per_chunk(run_command, folders, monkeypatch, tmp_path):
    """Chunks of equal lines have different samples, also if the output is resumable."""
    module = importlib.import_module("keras_transformer.cli.translate")
    monkeypatch.setattr(module, "CHUNK_SIZE", 2)
    text = "".join(f"{SOURCES[0]}\n" for _ in range(6))
    found = lines(run_command("translate", folders[0], "--sampling", stdin=text))
    assert len({tuple(found[i : i + 2]) for i in (0, 2, 4)}) == 3
    (tmp_path / "in").write_text(text)
    options = ["-i", tmp_path / "in", "-o", tmp_path / "out", "--sampling", "--resume"]
    assert run_command("translate", folders[0], *options).exit_code == 0
    assert (tmp_path / "out").read_text().split("\n")[:-1] == found


def test_ensembles_have_one_vocabulary_and_higher_scores(translate, folders):
    result = translate("--ensemble", folders[2])
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {folders[2] / 'model.keras'}: must have the same vocabulary as "
        f"{folders[0] / 'model.keras'}, like all models of an ensemble\n"
    )
    result = translate("--ensemble", folders[1], "--alignments")
    assert result.exit_code == 2 and "an ensemble cannot align words" in result.stderr
    opened = kt.open_model(folders[0], ensemble=[folders[1]])
    (pair,) = opened.score([SOURCES[0]], ["ein Hund"])
    singles = [kt.open_model(folder) for folder in folders[:2]]
    scores = [one.score([SOURCES[0]], ["ein Hund"])[0] for one in singles]
    # The logarithm is concave, so the ensemble's log-probability is at least the mean.
    assert min(one.log_prob for one in scores) < pair.log_prob
    assert pair.num_tokens == scores[0].num_tokens
    assert opened.fingerprint() != singles[0].fingerprint()
