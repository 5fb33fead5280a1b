"""benchmarks/data_diversification.py: its text, order of commands, and resuming.

The script trains forward and backward models, and then a final model on the original
pairs and the translations of both sides.
"""

import functools
import os
import pathlib
import signal
import sys

import prepared
import pytest
from benchmark_scripts import FOLDER, load_script
from phrases_run import SMALL
from waiting import wait_until

from keras_transformer.errors import RecipeError
from keras_transformer.machine import Gpu, Machine
from keras_transformer.recipes import load_recipe

RECIPE = load_recipe("phrases", [*SMALL, "training.parallel_parts=2"])
script = load_script("data_diversification")


def test_diversified_pairs_match_hand_computed_pairs():
    """The result maps each pair to its origin. A pair keeps its first origin."""
    pairs = script.diversified_pairs(
        ["a", "b", "a"],
        ["A", "B", "A"],
        # In forward-1, the first translation equals the target, and the last is empty.
        {"forward-1": ["A", "B2", ""], "forward-2": ["A3", "B2", "A"]},
        {"backward-1": ["a2", "b", "a2"], "backward-2": ["", "b", "a3"]},
    )
    assert list(pairs.items()) == [
        (("a", "A"), "original"),
        (("b", "B"), "original"),
        (("b", "B2"), "forward-1"),
        (("a", "A3"), "forward-2"),
        (("a2", "A"), "backward-1"),
        (("a3", "A"), "backward-2"),
    ]


@pytest.fixture
def commands(monkeypatch):
    """List that receives each command, which a fake runs in place of the package.

    For `train`, the fake writes an empty model and final scores. Its translations are
    the input in capital letters.
    """
    found = []

    def run(command):
        found.append(command)
        options = dict(zip(command[2::2], command[3::2], strict=False))
        output = pathlib.Path(options["--output"])
        if command[0] in ("train", "repeat"):
            output.mkdir(exist_ok=True)
            (output / "model.keras").touch()
            (output / "metrics.jsonl").write_text('{"split": "final", "step": 8}\n')
            return
        # `options` is wrong after --resume, which has no value.
        source = pathlib.Path(command[command.index("--input") + 1])
        output.write_text(source.read_text().upper())

    monkeypatch.setattr(script, "run", run)
    return found


def text_settings(folder):
    """Writes small text files and returns the settings that name them."""
    settings = []
    for split in ("train", "validation", "test"):
        for side in script.SIDES:
            path = folder / f"{split}.{side}"
            path.write_text("one\ntwo\n")
            settings.append(f"data.{split}.{side}={path}")
    return settings


def lines(path):
    return path.read_text().split("\n")[:-1]


def test_diversified_text_is_the_original_then_both_translations(commands, tmp_path):
    script.diversify(script.Plan(RECIPE, RECIPE, [1, 2]), tmp_path)
    text = tmp_path / "text"
    sources, targets = (lines(text / f"train.{side}") for side in script.SIDES)
    assert len(sources) == len(targets) > 500
    expected = {}
    for origin, pairs in (
        ("original", zip(sources, targets, strict=True)),
        ("forward-1", ((each, each.upper()) for each in sources)),
        ("backward-1", ((each.upper(), each) for each in targets)),
    ):
        for pair in pairs:
            expected.setdefault(pair, origin)
    # Seed 2 gives the same translations, so it adds no pair.
    columns = [
        lines(text / f"diversified.{name}") for name in (*script.SIDES, "origin")
    ]
    assert [*zip(*columns, strict=True)] == [
        (*pair, origin) for pair, origin in expected.items()
    ]
    forward, backward, final = (
        load_recipe(tmp_path / f"{name}.yaml")
        for name in ("forward", "backward", "diversified")
    )
    assert forward.data.train.source == backward.data.train.target
    assert forward.data.validation.source == backward.data.validation.target
    assert final.data.train.source == [str(text / "diversified.source")]
    assert final.data.test == forward.data.test
    assert forward.model == final.model == RECIPE.model
    assert forward.training == RECIPE.training


def test_commands_run_once_and_in_order(commands, tmp_path, capsys):
    output = tmp_path / "runs"
    plan = script.Plan(RECIPE, RECIPE, [1])
    script.diversify(plan, output, dry_run=True)
    assert not output.exists()
    printed = capsys.readouterr().out.splitlines()
    script.diversify(plan, output)
    names = [(each[0], pathlib.Path(each[1]).stem) for each in commands]
    assert names == [
        *(("train", "forward"), ("train", "backward")),
        *(("translate", "forward-1"), ("translate", "backward-1")),
        ("train", "diversified"),
    ]
    assert commands[0][-2:] == ("--set", "training.seed=1")
    assert commands[2][-2:] == ("--parallel-parts", "2")
    shown = [each for each in printed if not each.startswith("# ")]
    assert shown == [" ".join(["keras-transformer", *each]) for each in commands]
    # A second call recreates only the missing file.
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*.source")}
    (output / "synthetic" / "backward-1").unlink()
    del commands[:]
    script.diversify(plan, output)
    assert [each[0] for each in commands] == ["translate"]
    assert before == {path: path.stat().st_mtime_ns for path in before}
    with pytest.raises(RecipeError, match="Choose another --output"):
        script.diversify(plan._replace(seeds=[2]), output)


def test_resumed_script_keeps_automatic_settings(commands, tmp_path, monkeypatch):
    """The settings that the recipe `files` chooses for a GPU differ."""
    output = tmp_path / "runs"
    settings = [f"--set={each}" for each in text_settings(tmp_path)]
    for gpus in ((), (Gpu(24 << 30, 8.6),)):
        machine = functools.partial(Machine, 4, 8 << 30, gpus)
        monkeypatch.setattr("keras_transformer.machine.find_machine", machine)
        script.main(["files", *settings, f"--output={output}"])
        recipe = load_recipe(output / "forward.yaml")
        assert recipe.training.mixed_precision is None
    # The second call resumes: it runs no command again.
    names = ["train"] * 2 + ["translate"] * 2 + ["train"]
    assert [each[0] for each in commands] == names


@pytest.mark.parametrize("has_validation", [True, False])
def test_training_without_final_scores_is_not_finished(
    has_validation, commands, tmp_path, capsys
):
    """A kill can end `train` after it wrote the model, in the final validation."""
    changes = [] if has_validation else ["data.validation=null"]
    recipe = load_recipe("files", [*text_settings(tmp_path), *changes])
    plan, output = script.Plan(recipe, recipe, [1]), tmp_path / "runs"
    script.diversify(plan, output)
    for name in ("forward-1", "diversified"):
        rows = '{"split": "validation", "step": 8}\n'
        (output / name / "metrics.jsonl").write_text(rows)
    del commands[:]
    capsys.readouterr()
    script.diversify(plan, output, dry_run=True)
    shown = capsys.readouterr().out.splitlines()
    script.diversify(plan, output)
    folders = [pathlib.Path(each[3]).name for each in commands]
    assert folders == (["forward-1", "diversified"] if has_validation else [])
    assert len([each for each in shown if not each.startswith("#")]) == len(folders)


def test_forward_models_translate_together_and_are_continued(commands, tmp_path):
    output = tmp_path / "runs"
    initial = f"training.initial_model={output}/forward-{{seed}}"
    script.diversify(
        script.Plan(
            RECIPE,
            load_recipe("phrases", [*SMALL, initial]),
            seeds=[1, 2],
            final_seeds=[3, 4],
            directions=("forward",),
            has_ensemble=True,
        ),
        output,
    )
    models = [str(output / f"forward-{seed}") for seed in (1, 2)]
    names = [each[:2] for each in commands[:-1]]
    assert names == [
        *[("train", str(output / "forward.yaml"))] * 2,
        *(("translate", model) for model in (*models, models[0])),
    ]
    ensemble, final = commands[-2:]
    assert ensemble[ensemble.index("--ensemble") + 1] == models[1]
    assert "--ensemble" not in commands[-3]
    assert final[0] == "repeat" and final[-2:] == ("--seeds", "3,4")
    recipe = load_recipe(final[1], ["training.seed=4"])
    assert recipe.training.initial_path == str(output / "forward-4")


# Stands in for `train`. After Ctrl-C, it needs a second to save.
TRAINING = """#!{python}
import pathlib, signal, sys, time

def save(number, frame):
    time.sleep(1)
    (folder / "saved").touch()
    sys.exit(130)

folder = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
signal.signal(signal.SIGINT, save)
folder.mkdir()
time.sleep(600)
"""
# The script, with `sys.argv[1]` as the Python that trains.
SCRIPT = f"""
import os, sys
os.setpgid(0, 0)
sys.path.insert(0, {str(FOLDER)!r})
import data_diversification
sys.executable = sys.argv[1]
data_diversification.main(sys.argv[2:])
"""


def test_interrupted_training_saves_before_the_script_ends(tmp_path):
    python, output = tmp_path / "python", tmp_path / "runs"
    python.write_text(TRAINING.format(python=sys.executable))
    python.chmod(0o755)
    arguments = "phrases", f"--output={output}", *(f"--set={each}" for each in SMALL)
    paths = {"stdout": os.devnull, "stderr": tmp_path / "log"}
    process = prepared.start(SCRIPT, python, *arguments, **paths)
    try:
        wait_until((output / "forward-1").exists, "the start of the training")
        # Like a terminal, this interrupts both processes.
        os.killpg(process.pid, signal.SIGINT)
        process.join(120)
    finally:
        process.kill()
    log = paths["stderr"].read_text()
    assert process.exitcode == 130, log
    assert log.endswith("interrupted; run the same command again to resume\n")
    assert (output / "forward-1" / "saved").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.train.bidirectional=true", r"bidirectional must be false"),
        ("tokenizer.shared=false", r"shared must be true to train backward models"),
        ("data.test=null", r"--final-seeds needs a test set"),
    ],
)
def test_unsuitable_recipe_is_refused(tmp_path, setting, message):
    recipe = load_recipe("files", [*text_settings(tmp_path), setting])
    plan = script.Plan(recipe, recipe, [1], final_seeds=[1, 2])
    with pytest.raises(RecipeError, match=message):
        script.diversify(plan, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow  # Three trainings.
def test_commands_train_and_translate(tmp_path, capsys):
    settings = [f"--set={each}" for each in (*SMALL, "training.steps=2")]
    arguments = ["phrases", *settings, "--set-final=training.steps=3"]
    script.main([*arguments, f"--output={tmp_path / 'runs'}"])
    final = load_recipe(tmp_path / "runs" / "diversified" / "config.yaml")
    assert final.training.steps == 3
    assert "original" in lines(tmp_path / "runs" / "text" / "diversified.origin")
    assert "keras-transformer evaluate" in capsys.readouterr().out
