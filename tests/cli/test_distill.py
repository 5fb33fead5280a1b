"""The command `distill` from end to end."""

import pytest

SETTINGS = {
    "tokenizer.vocabulary_size": 300,
    **{"model.num_layers": 2, "model.d_model": 8, "model.d_ff": 8},
    **{"model.num_heads": 2, "model.variations.num_decoder_layers": 1},
    "training.steps": 2,
    "training.batch_tokens": 300,
    "training.warmup_steps": 1,
}


@pytest.mark.slow  # It compiles a search and a training step.
def test_distill_continues_each_phase(tiny_model_file, run_command, tmp_path):
    source, run = tmp_path / "source", tmp_path / "run"
    words = "der Hund", "die Katze", "ein Hund schläft", "die Katze schläft"
    source.write_text("".join(f"{words[n % 4]} {n}\n" for n in range(40)))
    command = ["distill", tiny_model_file, "--source", source, "--output", run]
    command += ["--keep-fraction", "1"]
    for key, value in SETTINGS.items():
        command += ["--set", f"{key}={value}"]
    assert "steps: 2" in run_command(*command, code=0).stdout
    texts = run / "distilled"
    assert (texts / "translated").read_text().count("\n") == 40
    kept = [(texts / side).read_text().splitlines() for side in ("source", "target")]
    assert 0 < len(kept[0]) == len(kept[1]) <= 40
    assert {*kept[0]} <= {*source.read_text().splitlines()}
    # The second call changes nothing, and the third trains further.
    assert "steps: 2" in run_command(*command, code=0).stdout
    result = run_command(*command, "--set", "training.steps=3", code=0)
    assert "steps: 3" in result.stdout
    found = [(texts / side).read_text().splitlines() for side in ("source", "target")]
    assert found == kept
