"""Prefixes, forbidden words, sampling, and ensembles on the command line."""

import importlib
import re

import numpy as np
import pytest
import tiny_export

from keras_transformer import pipelines
from keras_transformer.decoding import Sampling, batches
from keras_transformer.saving import open as models
from keras_transformer.transformer import Transformer

pytestmark = pytest.mark.usefixtures("models_stay_open")
SOURCES = ["der Hund läuft", "", "ein Hund und noch ein Hund", "die Katze", "läuft"]


def save_model(folder, model, tokenizer):
    folder.mkdir()
    model.save(folder / "model.keras")
    tokenizer.save(folder)
    return folder


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
    return [
        save_model(folder / name, each, tokens)
        for name, each, tokens in (
            ("first", model, tokenizer),
            ("second", second, tokenizer),
            ("other", model, other),
        )
    ]


@pytest.fixture
def translate(run_command, folders):
    """Function that translates `SOURCES` with the first model."""

    def run(*arguments, model=folders[0]):
        stdin = "".join(f"{line}\n" for line in SOURCES)
        return run_command("translate", model, *arguments, stdin=stdin)

    return run


@pytest.fixture(scope="module")
def free(run_command, folders):
    """Translations of `SOURCES` without any constraint."""
    stdin = "".join(f"{line}\n" for line in SOURCES)
    return lines(run_command("translate", folders[0], stdin=stdin))


def lines(result):
    assert result.exit_code == 0, result.stderr
    return result.stdout.split("\n")[:-1]


def words(texts):
    """Returns the set of words in texts.

    U+FFFD, which replaces an invalid byte, does not separate words.
    """
    return {word for text in texts for word in re.findall(r"[\w\ufffd]+", text)}


def test_parallel_parts_decode_in_parallel(translate, free, parallel_counts):
    assert lines(translate("--parallel-parts", "2")) == free
    assert parallel_counts == [2]
    assert translate("--parallel-parts", "0").exit_code == 2
    refused = translate("--sampling", "--parallel-parts", "2")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--parallel-parts: cannot be used with --sampling" in refused.stderr


def test_prefix_starts_every_translation(translate, free):
    found = lines(translate("--prefix", "  ein Hund "))
    assert found[1] == ""
    assert all(text.startswith("ein Hund") for text in found if text)
    assert not any(text.startswith("ein Hund") for text in free)
    assert len(set(found)) > 2


def test_prefix_of_impossible_tokens_is_an_error(translate, folders, monkeypatch):
    monkeypatch.setattr(Transformer, "num_outputs", 9)
    result = translate("--prefix", "Hund")
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        "prefix 'Hund' contains tokens that the model cannot generate" in result.stderr
    )


def test_prefix_file_has_a_prefix_per_line(translate, free, tmp_path):
    path = tmp_path / "prefixes"
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
        assert result.exit_code == 2 and message in result.stderr
        assert result.stdout == ""


def test_prefix_file_is_checked_before_the_translation(translate, tmp_path):
    source, prefixes = tmp_path / "source", tmp_path / "prefixes"
    source.write_text("a\nb\n")
    prefixes.write_text("a\n")
    result = translate("--input", source, "--prefix-file", prefixes)
    assert result.exit_code == 2
    message = f"must have one prefix per line of {source}. Received: 1 and 2 line(s)"
    assert message in result.stderr


def test_prefixed_score_is_at_least_the_model_score(folders):
    opened = models.open_model(folders[0])
    searching = opened.with_search(beam_size=3, length_penalty=0.0)
    for ranked, source in zip(
        searching.n_best(SOURCES, prefixes=["ein"] * 5),
        SOURCES,
        strict=True,
    ):
        best = ranked[0]
        if source:
            (score,) = opened.score([source], [best.text])
            # `score` adds the log-probability of the end id. A hypothesis that reached
            # the length limit has no end id, so its search score is higher.
            assert score.log_prob <= best.score + 1e-3


def test_forbidden_words_are_absent(translate, free, tmp_path):
    used = sorted(words(free))
    assert used
    word = max(used, key=len)
    found = lines(translate("--forbid", word))
    assert word not in words(found)
    assert found[1] == ""
    (tmp_path / "forbidden").write_text("".join(f"{each}*\n\n" for each in used))
    found = lines(translate("--forbid-file", tmp_path / "forbidden", "--forbid", "x"))
    assert not any(each.startswith(tuple(used)) for each in words(found))
    assert all([found[0], *found[2:]])
    # 20 samples for each of four texts, and one empty translation for the blank text.
    drawn = lines(translate("--forbid", word, "--sampling", "--n-best", "20"))
    assert len(drawn) == 81 and word not in words(drawn)
    result = translate("--forbid", " * ")
    assert result.exit_code == 2
    assert "' * ' is not a phrase that can be forbidden" in result.stderr


def test_sampling_is_reproducible(translate, free):
    options = ["--sampling", "--temperature", "0.9", "--top-k", "20", "--top-p", "0.95"]
    found = lines(translate(*options, "--seed", "3"))
    assert found == lines(translate(*options, "--seed", "3"))
    assert found != lines(translate(*options, "--seed", "4"))
    assert found[1] == ""
    assert lines(translate("--sampling")) == lines(
        translate("--sampling", "--seed", "1")
    )
    several = lines(translate("--sampling", "--n-best", "3", "--scores"))
    rows = [line.split("\t") for line in several]
    assert [row[0] for row in rows] == list("1112333444555")
    assert all(float(row[1]) < 0 for row in rows if row[0] != "2")
    first = lines(translate("--sampling", "--top-k", "1"))
    assert first == lines(translate("--beam-size", "1"))


def test_sampling_accepts_the_limits_of_temperature(translate):
    # The likeliest token has all of the probability.
    coldest = lines(translate("--sampling", "--temperature", "1e-30"))
    assert coldest == lines(translate("--beam-size", "1"))
    assert len(lines(translate("--sampling", "--temperature", "1e30"))) == len(SOURCES)


def test_sampling_limits_the_batch_size(folders, monkeypatch):
    sizes = []

    def batch_by_length(lengths, batch_tokens):
        sizes.append(batch_tokens)
        return real(lengths, batch_tokens)

    real = batches.batch_by_length
    monkeypatch.setattr(
        "keras_transformer.decoding.translator.batch_by_length", batch_by_length
    )
    opened = models.open_model(folders[0])
    few, many = (
        opened.sample(SOURCES[:1], Sampling(count, top_k=1)) for count in (1, 64)
    )
    assert len(many[0]) == 64 and many[0][0].text == few[0][0].text
    opened.with_search(beam_size=16).translate(SOURCES)
    # The maximum of 4,096 tokens per batch is for up to four rows per sentence. Samples
    # and hypotheses beyond four reduce it proportionally.
    assert sizes == [4096, 4096 * 4 // 64, 4096 * 4 // 16]


def test_sampling_uses_a_seed_per_chunk(run_command, folders, monkeypatch, tmp_path):
    """Chunks of equal lines have different samples, also if the output is resumable."""
    module = importlib.import_module("keras_transformer.cli.translate")
    monkeypatch.setattr(module, "CHUNK_SIZE", 2)
    text = "".join(f"{SOURCES[0]}\n" for _ in range(6))
    result = run_command("translate", folders[0], "--sampling", stdin=text)
    found = lines(result)
    assert len({tuple(found[i : i + 2]) for i in (0, 2, 4)}) == 3
    (tmp_path / "in").write_text(text)
    options = ["-i", tmp_path / "in", "-o", tmp_path / "out", "--sampling", "--resume"]
    real = module.resumable_lines
    opened = models.open_model(folders[0])
    record = None

    def spy(output, given, *arguments):
        nonlocal record
        record = given
        return real(output, given, *arguments)

    monkeypatch.setattr(module, "resumable_lines", spy)
    assert run_command("translate", folders[0], *options).exit_code == 0
    assert (tmp_path / "out").read_text().split("\n")[:-1] == found
    assert record["model"] == opened.fingerprint()


def test_ensemble_averages_its_models(translate, free, folders):
    found = lines(translate("--ensemble", folders[1]))
    assert found != free
    opened = models.open_model(folders[0], ensemble=[folders[1]])
    assert [model.num_layers for model in opened.model.models] == [1, 1]
    assert found == opened.translate(SOURCES)
    result = translate("--ensemble", folders[2])
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {folders[2] / 'model.keras'}: must have the same vocabulary as "
        f"{folders[0] / 'model.keras'}, like all models of an ensemble\n"
    )
    result = translate("--ensemble", folders[1], "--alignments")
    assert result.exit_code == 2 and "an ensemble cannot align words" in result.stderr


def test_ensemble_score_exceeds_the_lowest(folders, tmp_path, run_command):
    opened = models.open_model(folders[0], ensemble=[folders[1]])
    (pair,) = opened.score([SOURCES[0]], ["ein Hund"])
    singles = [
        models.open_model(folder).score([SOURCES[0]], ["ein Hund"])[0]
        for folder in folders[:2]
    ]
    # The logarithm is concave, so the ensemble's log-probability is at least the mean.
    assert min(one.log_prob for one in singles) < pair.log_prob
    assert pair.num_tokens == singles[0].num_tokens
    assert opened.fingerprint() != models.open_model(folders[0]).fingerprint()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top-k", "3"], "--top-k: needs --sampling"),
        (["--seed", "3"], "--seed: needs --sampling"),
        (
            ["--sampling", "--beam-size", "3"],
            "--beam-size: cannot be used with --sampling",
        ),
        (
            ["--sampling", "--patience", "1"],
            "--patience: cannot be used with --sampling",
        ),
        (["--sampling", "--temperature", "0"], "--temperature 0.0: must be above 0"),
        (
            ["--sampling", "--top-p", "1.5"],
            "--top-p 1.5: must be above 0 and at most 1",
        ),
        (
            ["--prefix", "a", "--prefix-file", "."],
            "--prefix and --prefix-file: give only one",
        ),
        (["--ensemble", "nowhere"], "nowhere: no such file"),
    ],
)
def test_translate_options_reject_invalid_values(translate, arguments, message):
    result = translate(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("patience", ["0", "-1", "nan"])
def test_patience_must_be_positive(translate, patience):
    result = translate("--patience", patience)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"'--patience': {float(patience)}: must be above 0" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prefix", "a"], "a SavedModel cannot use prefixes; use the run folder or"),
        (["--forbid", "a"], "cannot search with other settings or forbidden words"),
        (["--sampling"], "a SavedModel cannot sample translations"),
        (["--beam-size", "2"], "a SavedModel cannot search with other settings"),
    ],
)
def test_translate_rejects_options_that_an_export_lacks(
    translate, tiny_export, arguments, message
):
    result = translate(*arguments, model=tiny_export)
    assert result.exit_code == 2
    assert message in result.stderr and result.stderr.count("\n") == 1
