"""The command `distill` from end to end."""

import pytest
from commands import run_command

from keras_transformer.cli import distill as module
from keras_transformer.errors import RunError
from keras_transformer.evaluation.pair_filter import PairFilter

SETTINGS = {
    "tokenizer.vocabulary_size": 300,
    **{"model.num_layers": 2, "model.d_model": 8, "model.d_ff": 8},
    **{"model.num_heads": 2, "model.variations.num_decoder_layers": 1},
    "training.steps": 2,
    "training.batch_tokens": 300,
    "training.warmup_steps": 1,
}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.num_layers=x", "error: --set model.num_layers: "),
        ("model.num_layers=2", "run: is another run. Choose another --output"),
        ("model.num_layers=2", "run: contains files but no run (notes.txt). Choose"),
    ],
)
def test_distill_finds_errors_before_it_translates(
    tiny_model_file, tmp_path, override, message
):
    source, run = tmp_path / "source", tmp_path / "run"
    source.write_text("der Hund\n")
    if "another" in message:
        run.mkdir()
        (run / "config.yaml").touch()
    if "notes" in message:
        run.mkdir()
        (run / "notes.txt").touch()
    command = ["distill", tiny_model_file, "--source", source, "--output", run]
    assert message in run_command(*command, "--set", override, code=2).stderr
    assert not (run / "distilled").exists()


def test_distill_names_options_of_train(tiny_model_file, tmp_path, monkeypatch):
    """For its run, which `train` continues with `--allow-changes`."""

    def refuse(*args, **options):
        raise RunError("Pass `allow_changes`, or start over with `restart`")

    monkeypatch.setattr(module, "translate", refuse)
    (tmp_path / "source").write_text("a\n")
    command = ["distill", tiny_model_file, "--source", tmp_path / "source"]
    result = run_command(*command, "--output", tmp_path / "run", code=2)
    expected = "Pass --allow-changes to `train`, or start over with an empty folder"
    assert expected in result.stderr


@pytest.mark.slow  # It compiles a search and a training step.
def test_distill_continues_each_phase(tiny_model_file, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    source, run = tmp_path / "source", tmp_path / "run"
    words = "der Hund", "die Katze", "ein Hund schläft", "die Katze schläft"
    source.write_text("".join(f"{words[n % 4]} {n}\n" for n in range(40)))
    command = ["distill", tiny_model_file, "--source", source, "--output", run]
    command += ["--keep-fraction", "1"]
    for key, value in SETTINGS.items():
        command += ["--set", f"{key}={value}"]
    texts = run / "distilled"
    with monkeypatch.context() as patch:
        patch.setattr(PairFilter, "score", interrupt)
        run_command(*command, code=130)
    times = {texts / "translated": (texts / "translated").stat().st_mtime_ns}
    assert not (texts / "source").exists()
    assert "steps: 2" in run_command(*command, code=0).stdout
    assert (texts / "translated").read_text().count("\n") == 40
    kept = [(texts / side).read_text().split("\n") for side in ("source", "target")]
    assert 1 < len(kept[0]) == len(kept[1]) <= 41
    assert {*kept[0]} <= {*source.read_text().split("\n")}
    # Another call changes nothing, and one with more steps trains further.
    files = [*texts.iterdir(), run / "checkpoints" / "ckpt-2.npz"]
    times = {path: path.stat().st_mtime_ns for path in files} | times
    for steps, unchanged in (2, files), (3, files[:-1]):
        result = run_command(*command, "--set", f"training.steps={steps}", code=0)
        assert f"steps: {steps}" in result.stdout
        assert all(path.stat().st_mtime_ns == times[path] for path in unchanged)
