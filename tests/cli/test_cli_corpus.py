"""`corpus prepare`, `corpus translate` and `corpus score`.

Fakes replace the functions that run Apache Beam, so
these tests check only their arguments. tests/beam checks the functions.
"""

import importlib.util
import sys
import types

import pytest
from commands import error_of, run_command


@pytest.fixture
def called(monkeypatch, tmp_path):
    """List that receives the arguments of the functions that would run Apache Beam."""
    calls = []

    def encode(*arguments, **options):
        calls.append((arguments, options))
        return {"num_pairs": 1000, "num_read": 1002, "dropped": {"empty": 2}}

    def run(*arguments, **options):
        calls.append((arguments, options))

    for name, fake in (
        ("corpus", types.SimpleNamespace(encode_with_apache_beam=encode)),
        ("inference", types.SimpleNamespace(run_with_apache_beam=run)),
    ):
        full_name = f"keras_transformer.beam.{name}"
        monkeypatch.setitem(sys.modules, full_name, fake)
        monkeypatch.setattr(
            importlib.import_module("keras_transformer.beam"),
            *(name, fake),
            raising=False,
        )
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: name if name == "apache_beam" else find_spec(name),
    )
    (tmp_path / "model" / "3").mkdir(parents=True)
    (tmp_path / "model" / "3" / "saved_model.pb").touch()
    return calls


def test_corpus_prepare_passes_its_options(called, tmp_path):
    (tmp_path / "model" / "tokenizer").mkdir()
    options = [
        *("-s", "a", "-t", "b", "-s", "c", "-t", "d", "--output", "gs://ids"),
        *("--max-length", "9", "--max-ratio", "2", "--deduplicate"),
        *("--num-shards", "3"),
        *("--pipeline-option", "runner=FlinkRunner", "--pipeline-option", "x=1"),
    ]
    result = run_command("corpus", "prepare", tmp_path / "model", *options)
    assert result.stderr == "1,000 of 1,002 pairs kept; dropped: 2 with an empty side\n"
    tokenizer = tmp_path / "model" / "tokenizer"
    assert called == [
        (
            (["a", "c"], ["b", "d"], tokenizer, "gs://ids"),
            {
                "shards": 3,
                "max_length": 9,
                "max_ratio": 2.0,
                "deduplicate": True,
                "pipeline_options": ["--runner=FlinkRunner", "--x=1"],
            },
        )
    ]


def test_corpus_translate_uses_the_newest_version(called, tmp_path):
    options = ["-s", "a", "-o", "out", "--pipeline-option", "x=1"]
    run_command("corpus", "translate", tmp_path / "model", *options)
    version = tmp_path / "model" / "3"
    assert called == [
        (
            (version, "translate", ["a"], "out", []),
            {"batch_size": 64, "pipeline_options": ["--x=1"], "allow_unsafe": False},
        )
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.keras").touch()
    result = run_command("corpus", "translate", tmp_path / "run", *options)
    assert "run: not a SavedModel" in error_of(result)


def test_corpus_score_passes_allow_unsafe(called, tmp_path):
    model = tmp_path / "model"
    files = ["-s", "a", "-o", "out", "-t", "b"]
    result = run_command("corpus", "score", model, *files, "--allow-unsafe")
    assert result.stderr == (
        f"warning: {model}: not checked, so it can run any code (--allow-unsafe)\n"
    )
    assert called[0][1]["allow_unsafe"] is True


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("none", [], "none: no such file or folder"),
        (".", [], "apache_beam is not installed: pip install"),
        *(
            (
                ".",
                ["--pipeline-option", each],
                f"--pipeline-option {each}: must have the form ",
            )
            for each in ("=", "", "-x", "two words=1")
        ),
    ],
)
def test_corpus_rejects_invalid_arguments(
    tmp_path, monkeypatch, model, options, message
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    files = ["-s", "a", "-t", "b", "-o", "out"]
    result = run_command("corpus", "prepare", tmp_path / model, *files, *options)
    assert message in error_of(result)
