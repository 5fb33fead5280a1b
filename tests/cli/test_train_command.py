"""Output of `train`, with a stand-in for the training itself."""

import sys
import types

import pytest
from commands import run_command

from keras_transformer.cli import console
from keras_transformer.runs import plan


@pytest.fixture
def trained():
    """List that receives the recipe and the options of each training."""
    return []


@pytest.fixture
def train(monkeypatch, tmp_path, trained):
    """Function that runs `train` in an empty folder, without any training."""

    def run(recipe, folder, **options):
        trained.append((recipe, options))
        return {"steps": 7}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "load_tensorflow", lambda: None)
    fake = types.SimpleNamespace(train=run)
    monkeypatch.setitem(sys.modules, "keras_transformer.runs.train", fake)
    return lambda *arguments: run_command("train", *arguments)


FILES = [
    "data={train: {source: a.en, target: a.de}, max_length: 99}",
    "data.validation={source: [v.en, w.en], target: [v.de, w.de]}",
    "data.test={source: t.en, target: /else where/t.de}",
]
TREES = "data={kind: trees, train: {trees: a.trees}, validation: {trees: v.trees}}"


@pytest.mark.parametrize(
    ("recipe", "settings", "run", "commands"),
    [
        (
            *("files", FILES, "runs/my run"),
            [
                "evaluate 'runs/my run' --source t.en --reference '/else where/t.de'",
                "translate 'runs/my run'",
                "export 'runs/my run' 'saved_models/my run'",
            ],
        ),
        # Without data.test, the names are examples: the validation text has chosen
        # best.keras.
        (
            *("files", FILES[:2], "run"),
            [
                "evaluate run --source test.en --reference test.de",
                "translate run",
                "export run saved_models/run",
            ],
        ),
        (
            *("craft_parsing", [TREES], "run"),
            ["evaluate run --metric f1 --reference test.trees", "parse run"],
        ),
        # No command names a file that does not exist.
        ("phrases", [], "run", ["translate run", "export run saved_models/run"]),
    ],
)
def test_train_prints_the_next_commands(
    train, tmp_path, recipe, settings, run, commands
):
    for name in ("a", "v", "w"):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("a\n")
    result = train(recipe, "--output", run, *(f"--set={each}" for each in settings))
    assert (result.exit_code, result.stdout) == (0, "steps: 7\n"), result.stderr
    lines = result.stderr.partition("next:\n")[2].splitlines()
    inputs = {"translate": 'echo "TEXT" | ', "parse": 'echo "The dog barks ." | '}
    for line, command in zip(lines, commands, strict=True):
        start = inputs.get(command.split()[0], "")
        assert line == f"  {start}keras-transformer {command}"


def test_quiet_training_prints_results_only(train):
    result = train("phrases", "--output", "run", "--quiet")
    assert (result.stdout, result.stderr) == ("steps: 7\n", "")


def test_train_warns_of_a_warmup_that_does_not_end(train):
    def warnings(settings):
        result = train("phrases", "-o", "run", "-q", "--set", f"training={settings}")
        assert result.exit_code == 0, result.stderr
        return result.stderr

    found = warnings("{steps: 1000}")
    assert "warning: training: warmup_steps=4000 exceeds steps=1000, so" in found
    assert found.count("\n") == 1
    assert warnings("{steps: 1000, warmup_steps: 1000}") == ""
    stages = "[{steps: 9, warmup_steps: 9}, {steps: 9}]"
    found = warnings(f"{{warmup_steps: 10, stages: {stages}}}")
    assert "training.stages: stage 2: warmup_steps=10 exceeds steps=9" in found
    assert found.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--output", "run"],
            "pass RECIPE, the name of a packaged recipe or a YAML file",
        ),
        (["phrases"], "pass the run folder as --output RUN"),
        (
            ["phrases", "--set", "training.warmup_step=3", "--output", "run"],
            "--set training.warmup_step: unknown key training.warmup_step. Did you "
            "mean training.warmup_steps?",
        ),
    ],
)
def test_train_names_a_mistake(train, tmp_path, arguments, message):
    result = train(*arguments)
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("option", "key"),
    [("--epochs=3", "training.steps"), ("--d-model", "model.d_model")],
)
def test_train_names_the_key_of_an_option(train, option, key):
    result = train("files", option, "--output", "run")
    name = option.partition("=")[0]
    message = f"Error: No such option: {name}. Did you mean --set {key}=...?"
    assert result.stderr.splitlines()[-1] == message


@pytest.mark.parametrize("options", [["--output", "run"], ["--dry-run"]])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("files, train: {source: a, target: none}", "{}/none: no such file"),
        (
            "files, train: {source: a, target: b}",
            "{0}/a and {0}/b must have the same number of lines. Received: 1 and 2",
        ),
        (
            "files, train: {source: a, target: a}, validation: {source: a, target: c}",
            "{}/c: the text is UTF-16. Convert it with iconv -f UTF-16 -t UTF-8",
        ),
        ("tsv, train: a, validation: none", "{}/none: no such file"),
        (
            "jsonl, train: d, source: s, target: t",
            "{}/d:1: data.target=t must be a key of the object. Available: s",
        ),
        ("mixed, train: [{kind: tsv, train: none}]", "{}/none: no such file"),
    ],
)
def test_train_names_bad_text_before_anything_else(
    train, tmp_path, options, data, message
):
    for name, text in {"a": "a\tb\n", "b": "a\nb\n", "d": '{"s": "a"}\n'}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "c").write_text("a\n", encoding="utf-16")
    result = train("files", *options, "--set", f"data={{kind: {data}}}")
    error = message.format(tmp_path)
    assert (result.exit_code, result.stderr.rstrip()) == (2, f"error: {error}")
    assert not (tmp_path / "run").exists()


def test_train_without_a_recipe_lists_recipes(train):
    names = [line.split()[0] for line in train().stdout.splitlines()]
    assert {"phrases", "multi30k_en_de", "wmt14_en_fr_big", "files"} <= {*names}


def test_train_options_reach_the_training(train, trained):
    expected = {"allow_changes": False, "restart": False, "worker_timeout": 30.0}
    expected |= {"allow_unsafe": False, "progress": True}
    for option, change in {
        "--device=cpu": {},
        "--allow-changes": {"allow_changes": True},
        "--restart": {"restart": True},
        "--worker-timeout=5": {"worker_timeout": 5.0},
        "--allow-unsafe": {"allow_unsafe": True},
        "--quiet": {"progress": False},
    }.items():
        assert train("phrases", "--output", "run", option).exit_code == 0
        assert trained.pop()[1] == {**expected, **change}
    train("phrases", "-o", "run", "--set", "training.steps=7", "--deterministic")
    ((recipe, _),) = trained
    assert (recipe.training.steps, recipe.training.deterministic) == (7, True)


def test_train_explains_how_to_resume(train, monkeypatch, tmp_path):
    def run(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["keras_transformer.runs.train"], "train", run)
    options = ["--output", "a run", "--restart", "--set=training={steps: 9}"]
    command = (
        "  keras-transformer train phrases --output 'a run' "
        "'--set=training={steps: 9}'\n"
    )
    result = train("phrases", *options)
    assert result.exit_code == 130
    end = f"interrupted; no step is saved yet. To resume, run:\n{command}"
    assert result.stderr.endswith(end)
    (tmp_path / "a run" / "checkpoints").mkdir(parents=True)
    for step in (90, 1200):
        (tmp_path / "a run" / "checkpoints" / f"ckpt-{step}.npz").touch()
    end = f"interrupted; step 1,200 is saved. To resume, run:\n{command}"
    assert train("phrases", *options).stderr.endswith(end)


@pytest.mark.parametrize("output", [[], ["--output", "run"]])
def test_dry_run_prints_a_plan_without_training(
    train, trained, tmp_path, monkeypatch, output
):
    for name in ("a", "b"):
        (tmp_path / name).write_text("a cat sat on it\n" * 20)
    monkeypatch.setattr(plan, "_tokens_per_second", lambda *_: 960.0)
    result = train(
        *("files", *output, "--dry-run", "--set", "data.train={source: a, target: b}"),
        *("--set", "training={steps: 30, batch_tokens: 64}"),
        *("--set", "tokenizer.vocabulary_size=50", "--set", "model.size=tiny"),
    )
    assert result.exit_code == 0, result.stderr
    printed = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    # A line has 16 bytes, at 4 bytes per token.
    assert printed["data"] == "20 pairs, about 80 tokens per side"
    assert printed["steps"] == "30, about 24 epochs"
    assert printed["time"] == "about 2 s, without validation"
    assert trained == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
