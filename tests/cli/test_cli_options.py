"""Invalid option values."""

import json
import os
import re
import resource

import numpy as np
import prepared
import pytest
import tensorflow as tf

from keras_transformer.saving import open as models


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--patience", "inf"], "--patience inf: must be a finite number"),
        (["--sampling", "--temperature", "inf"], "--temperature inf: must be a finite"),
        (["--prefix", "caf\udce9"], r"caf\udce9: must be UTF-8"),
        (["--forbid", "a", "--forbid", "\udcff"], r"\udcff: must be UTF-8"),
        (["--seed", "9" * 20], "--seed 99999999999999999999: must be below 9223372"),
        (["--output", "loop"], "loop: Too many levels of symbolic links"),
    ],
)
def test_values_that_no_command_can_use_are_refused(
    run_command, model_path, tmp_path, monkeypatch, arguments, message
):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.chdir(tmp_path)
    result = run_command("translate", model_path, *arguments, stdin="line\n")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("value", ["1e-40", "-1.0", "1.1e+30"])
def test_temperatures_out_of_range_are_refused_first(
    run_command, model_path, monkeypatch, value
):
    def never(*_, **__):
        raise AssertionError("the model is opened before the value is checked")

    monkeypatch.setattr(models, "open_model", never)
    arguments = ["--sampling", "--temperature", value]
    result = run_command("translate", model_path, *arguments, stdin="line\n")
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: --temperature {value}: must be above 0, from 1e-30 to 1e+30\n"
    )


@pytest.mark.parametrize(
    ("option", "value"), [("--beam-size", 10_001), ("--parallel-parts", 1_001)]
)
def test_sizes_beyond_any_memory_are_refused(run_command, model_path, option, value):
    result = run_command("translate", model_path, option, value, stdin="line\n")
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.stderr.replace("\n", " ")
    assert f"equal to {value - 1}" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("option", "limit"), [("max-wait-ms", 60_000), ("timeout", 86_400)]
)
def test_serve_refuses_waits_without_end(run_command, tmp_path, option, limit):
    result = run_command("serve", tmp_path, f"--{option}", "1e30")
    assert result.exit_code == 2
    assert f"equal to {limit}" in " ".join(result.stderr.split())


def test_ablate_refuses_more_seeds_than_anybody_trains(run_command, tmp_path):
    arguments = ("phrases", "--output", tmp_path / "out", "--seeds", 1_001)
    result = run_command("ablate", *arguments)
    assert result.exit_code == 2
    assert "equal to 1000" in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "exhaust",
    [
        lambda: np.empty(2**62, "int8"),
        lambda: tf.random.stateless_uniform([2**17, 2**36], seed=[1, 2]),
        # The shape is an argument, so that TensorFlow does not fold it at tracing.
        lambda: tf.function(tf.random.stateless_uniform)(
            tf.constant([2**17, 2**30]), seed=[1, 2]
        ),
    ],
)
def test_exhausted_memory_is_an_error_in_one_line(
    run_command, model_path, translator, tmp_path, monkeypatch, exhaust
):
    def attention_of(*arguments):
        exhaust()

    translator.model = translator.tokenizer = None
    monkeypatch.setattr("keras_transformer.visualization.attention_of", attention_of)
    command = ("visualize", model_path, "--source", "x", "--output", tmp_path / "att")
    result = run_command(*command)
    assert result.exit_code == 2
    error = result.stderr.splitlines()[-1]
    assert re.match("error: not enough memory: (Unable to allocate|OOM when)", error)


def test_too_many_open_files_are_not_reported_as_exhausted_memory(
    run_command, model_path, monkeypatch
):
    def require_exists(*paths):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        try:
            tf.io.read_file(str(model_path))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    monkeypatch.setattr("keras_transformer.cli.console.require_exists", require_exists)
    result = run_command("score", model_path, "--source", "a", "--target", "b")
    assert result.exit_code == 2
    error = result.stderr.splitlines()[-1]
    assert error == f"error: {model_path}: Too many open files"


def test_file_names_may_contain_any_bytes(tmp_path):
    (tmp_path / "config.yaml").touch()
    row = {"split": "train", "step": 1, "seconds": 2.0, "loss": 3.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    done = prepared.run(
        *(prepared.COMMAND, "plot", ".", "-o", "caf\udce9.png"),
        folder=tmp_path,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".stdout").read_bytes() == b"caf\xe9.png\n"
    assert b"caf\xe9.png" in os.listdir(os.fsencode(tmp_path))


def test_recipe_file_names_must_be_utf8(run_command, tmp_path):
    result = run_command("init", tmp_path / "caf\udce9.yaml")
    assert result.exit_code == 2
    assert result.stderr.endswith(r"caf\udce9.yaml: must be UTF-8" "\n")
    assert result.stderr.count("\n") == 1 and not [*tmp_path.iterdir()]
