"""Run folders: locks, changed recipes and leftovers of a crash.

A run folder contains the output of one training run. When `train` starts, it locks the
folder (`lock`), removes incomplete files (`clean`), and writes its recipe unless the
folder contains a different run (`claim`). After restoring a checkpoint, it refuses
changed text and another number of replicas (`check_unchanged`).

`fault_table.py` explains the marker `fault`.
"""

import os
import re
import signal
import subprocess
import sys

import pytest

from keras_transformer.errors import (
    CheckpointError,
    DataError,
    RunBusyError,
    RunError,
    WorkerLostError,
)
from keras_transformer.recipes import load_recipe
from keras_transformer.runs import folder as run_folder
from keras_transformer.runs.validation import validation_settings
from keras_transformer.training.callbacks import Progress

# Holds a lock until standard input ends. It imports only what the package locks with.
HOLD = """
import filelock, sys
with filelock.FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def recipe(*overrides):
    return load_recipe("phrases", overrides)


def add_checkpoint(folder, step=3):
    """Adds the files of a checkpoint."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / f"ckpt-{step}.npz").touch()
    (folder / "tokenizer").mkdir(exist_ok=True)


@pytest.mark.fault(
    "X01", "an error for the second; SIGKILL of the first releases the lock"
)
def test_lock_rejects_second_process(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        for _ in range(2):
            with pytest.raises(RunBusyError, match="in use"), run_folder.lock(tmp_path):
                pytest.fail("locked twice")
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(timeout=60)
    finally:
        holder.kill()
        holder.stdin.close()
        holder.stdout.close()
    for _ in range(2):
        with run_folder.lock(tmp_path):
            pass


@pytest.mark.fault("F02", "the next start removes incomplete files and nothing else")
def test_clean_removes_only_leftovers(tmp_path):
    kept = [
        *("config.yaml", "model.keras", "notes-2024.txt", "cache/train/source_ids.npy"),
        *("tokenizer/tokenizer.model", "checkpoints/ckpt-7.npz"),
    ]
    leftovers = [
        *(".model-47-0f3a12bc.keras", ".metrics-12-0f3a12bc.jsonl"),
        *(".config-4711-0f3a12bc.yaml", ".best-12-0f3a12bc/model.weights.h5"),
        *(".probe-8-0f3a12bc", "cache/.train-99-0f3a12bc/source_ids.npy"),
        "tokenizer/.tokenizer-77-0f3a12bc.model",
        "tokenizer/source/.tokenizer-77-0f3a12bc.model",
        *("checkpoints/.ckpt-9-123-0f3a12bc.npz", "checkpoints/.saved-5-0f3a12bc.json"),
        *(
            "checkpoints/.probe-8-0f3a12bc",
            ".tokenizer-77-0f3a12bc-old/tokenizer.model",
        ),
    ]
    for name in kept + leftovers:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    run_folder.clean(tmp_path)
    left = (path for path in tmp_path.rglob("*") if path.is_file())
    assert {str(path.relative_to(tmp_path)) for path in left} == set(kept)
    run_folder.clean(tmp_path, restart=True)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"config.yaml", "notes-2024.txt", "cache"}


@pytest.mark.fault(
    "F06", "an error that lists the changed keys; `--allow-changes` resumes"
)
def test_claim_rejects_changed_recipe(tmp_path):
    run_folder.claim(tmp_path, recipe())
    # Before the first checkpoint, another recipe may use the folder.
    (tmp_path / "tokenizer").mkdir()
    run_folder.claim(tmp_path, recipe("model.d_ff=30"))
    assert not (tmp_path / "tokenizer").exists()
    add_checkpoint(tmp_path)
    changes = r"\(model\.d_ff: 30 -> \d+, training\.seed: 1 -> 9\)\."
    with pytest.raises(RunError, match=changes):
        run_folder.claim(tmp_path, recipe("training.seed=9"))
    assert load_recipe(tmp_path / "config.yaml").model.d_ff == 30
    # More steps and another search do not require --allow-changes.
    free = ("model.d_ff=30", "training.steps=9999", "decoding.beam_size=7")
    run_folder.claim(tmp_path, recipe(*free))
    before = (tmp_path / "config.yaml").read_text()
    other_seed = recipe("model.d_ff=30", "training.seed=9")
    run_folder.claim(tmp_path, other_seed, allow_changes=True)
    assert (tmp_path / "config.yaml").read_text() == before
    assert (tmp_path / "tokenizer").exists()


def test_changes_of_settings_are_shown(tmp_path, caplog):
    run_folder.claim(tmp_path, recipe())
    add_checkpoint(tmp_path)
    with caplog.at_level("INFO", "keras_transformer"):
        run_folder.claim(tmp_path, recipe())
        assert not caplog.messages
        changes = ("training.steps=9999", "training.early_stopping={patience: 3}")
        run_folder.claim(tmp_path, recipe(*changes))
    (message,) = caplog.messages
    assert re.fullmatch(
        r"changed settings: training\.early_stopping: null -> \{.*\"patience\": 3\}, "
        r"training\.steps: \d+ -> 9999",
        message,
    )


class TestOtherFiles:
    """A folder with files but no run is refused."""

    @pytest.mark.parametrize(
        "names",
        [
            [],
            [".nfs1", "train.log", "slurm-1.out", "distilled/source"],
            ["notes.txt", "config.yaml"],
            ["notes.txt", "model.keras"],
            ["notes.txt", "checkpoints/ckpt-3.npz"],
        ],
    )
    def test_runs_and_logs_are_accepted(self, tmp_path, names):
        self.write(tmp_path, names)
        run_folder.refuse_other_files(tmp_path)

    @pytest.mark.parametrize(
        ("names", "shown"),
        [
            (["notes.txt"], "notes.txt"),
            (["logs/a", "checkpoints/ckpt-1.pt"], "checkpoints, logs"),
            (["d", "c", "b", "a", "train.log"], "a, b, c, ..."),
        ],
    )
    def test_other_files_are_named(self, tmp_path, names, shown):
        self.write(tmp_path, names)
        with pytest.raises(RunError) as error:
            run_folder.refuse_other_files(tmp_path)
        assert f"contains files but no run ({shown}). Choose" in str(error.value)

    def write(self, folder, names):
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).touch()


def test_claim_warns_of_changes_without_effect(tmp_path, caplog):
    start = "training.initial_model=a", "tokenizer.model=b"
    run_folder.claim(tmp_path, recipe(*start))
    add_checkpoint(tmp_path)
    changes = "training.initial_model=c", "tokenizer.model=d"
    run_folder.claim(tmp_path, recipe(*changes), allow_changes=True)
    keys = "tokenizer.model and training.initial_model"
    assert f"reads {keys} only at its start" in caplog.text
    caplog.clear()
    run_folder.claim(tmp_path, recipe(*start, "training.seed=9"), allow_changes=True)
    assert not caplog.text


def test_claim_warns_if_the_learning_rate_rises_again(tmp_path, caplog):
    def claim(steps):
        caplog.clear()
        settings = "training.cooldown_steps=30", f"training.steps={steps}"
        run_folder.claim(tmp_path, recipe("training.schedule=inverse_sqrt", *settings))
        return caplog.text

    claim(100)
    # The cooldown begins after step 70, and then after step 90. "x" is no step.
    for step, steps in (("x", 100), (70, 120)):
        add_checkpoint(tmp_path, step)
        assert not claim(steps)
    add_checkpoint(tmp_path, 91)
    assert "began after step 90. With training.steps=150, it begins" in claim(150)
    assert not claim(150) and not claim(140)


@pytest.mark.fault("F06", "changed architecture or vocabulary size: always an error")
def test_claim_rejects_changed_shape(tmp_path):
    run_folder.claim(tmp_path, recipe())
    add_checkpoint(tmp_path)
    before = (tmp_path / "config.yaml").read_text()
    precision = "training.mixed_precision=float16"
    for change in ("model.d_ff=30", "tokenizer.vocabulary_size=999", precision):
        key = change.partition("=")[0]
        message = rf"do not fit these changes: {key}: [^.]+\. .*`restart`"
        with pytest.raises(RunError, match=message):
            run_folder.claim(tmp_path, recipe(change), allow_changes=True)
        assert (tmp_path / "config.yaml").read_text() == before


@pytest.mark.fault(
    "X02", "`--restart` is rejected if the initial model is in the run folder"
)
def test_restart_keeps_initial_model(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    inside = (folder, folder / "best.keras", folder / ".." / "run" / "x.keras")
    changes = [f"training.initial_model={path}" for path in inside]
    for change in (*changes, f"tokenizer.model={folder}/a.model"):
        with pytest.raises(RunError, match="`restart` would remove this"):
            run_folder.check_restart(folder, recipe(change))
    for other in (tmp_path / "other", tmp_path / "run2" / "best.keras", "null"):
        run_folder.check_restart(folder, recipe(f"training.initial_model={other}"))


@pytest.mark.parametrize("content", ["\x00\x01", "data: 3"])
def test_claim_reports_damaged_recipe(tmp_path, content, caplog):
    """The error names the file to delete. The run resumes if the file is missing."""
    run_folder.claim(tmp_path, recipe())
    add_checkpoint(tmp_path)
    config = tmp_path / "config.yaml"
    stored = config.read_bytes()
    config.write_text(content)
    with pytest.raises(RunError, match=rf"{config}.*Restore {config}, or delete it"):
        run_folder.claim(tmp_path, recipe())
    assert config.read_text() == content
    run_folder.claim(tmp_path, recipe(), allow_changes=True)
    assert f"{config}: damaged" in caplog.text
    config.unlink()
    run_folder.claim(tmp_path, recipe())
    assert config.read_bytes() == stored


@pytest.mark.fault("X02", "not resumed; `--from` starts a new run with its weights")
def test_claim_rejects_model_without_checkpoints(tmp_path):
    (tmp_path / "model.keras").touch()
    with pytest.raises(RunError, match=r"the checkpoints.*training\.initial_m"):
        run_folder.claim(tmp_path, recipe())
    run_folder.clean(tmp_path, restart=True)
    run_folder.claim(tmp_path, recipe())
    # With a checkpoint, the model is the result of a run that can resume.
    (tmp_path / "model.keras").touch()
    add_checkpoint(tmp_path)
    run_folder.claim(tmp_path, recipe())


def test_claim_keeps_the_vocabulary_of_lost_checkpoints(tmp_path):
    """Checkpoints that the user restores need the vocabulary."""
    run_folder.claim(tmp_path, recipe())
    before = (tmp_path / "config.yaml").read_bytes()
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "checkpoints" / "saved.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"none is left\. Restore them"):
        run_folder.claim(tmp_path, recipe("model.d_model=32"), allow_changes=True)
    assert (tmp_path / "tokenizer").is_dir()
    assert (tmp_path / "config.yaml").read_bytes() == before


@pytest.mark.fault("F23", "a symbolic link as the lock file: its target is unchanged")
def test_lock_follows_no_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("somebody's")
    (tmp_path / ".lock").symlink_to(victim)
    with (
        pytest.raises(RunError, match=r"\.lock: .*Remove it"),
        run_folder.lock(tmp_path),
    ):
        pytest.fail("locked through a link")
    assert victim.read_text() == "somebody's"


@pytest.fixture
def outside(tmp_path):
    """Folder outside the run. A run would delete files with the names of its files."""
    names = [
        *("ckpt-1.npz", ".ckpt-2-7.npz", ".probe-1.tmp", "x.12.tmp", ".saved-7.json"),
        *("corpus.json", "tokenizer.model", "metrics.jsonl", "train", "text.sha256"),
    ]
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("somebody's")
    return folder


@pytest.mark.fault("F23", "folders that are links are rejected; nothing is deleted")
@pytest.mark.parametrize(
    "name",
    [
        *("notes", "checkpoints", "logs", "logs/train", "cache", "cache/train"),
        *("cache/validation", "cache/train-both-0x1", "tokenizer", "metrics.jsonl"),
    ],
)
def test_nothing_is_written_through_a_link(tmp_path, outside, name):
    before = {path: path.stat() for path in outside.rglob("*")}
    run = tmp_path / "run"
    (run / name).parent.mkdir(parents=True)
    target = outside / name if name == "metrics.jsonl" else outside
    (run / name).symlink_to(target)

    def claim(restart):
        with run_folder.create_and_lock(run):
            run_folder.clean(run, restart)

    if name == "notes":
        claim(False)
    else:
        with pytest.raises(RunError, match=f"{name}: must be a .* not a symbolic link"):
            claim(False)
        assert (run / name).is_symlink()
    if not name.startswith("cache"):
        claim(True)
        assert (run / name).is_symlink() == (name == "notes")
    assert {path: path.stat() for path in outside.rglob("*")} == before


@pytest.mark.parametrize("name", ["logs", "checkpoints", "cache", "logs/validation"])
def test_clean_names_a_file_in_place_of_a_folder(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(RunError, match=f"{name}: must be a folder. Remove it"):
        run_folder.clean(tmp_path)


class TestFailedStart:
    """A failed start removes what it has written and nothing else."""

    def fail(self, folder, error=DataError, logged=False):
        """Starts a run that fails. If `logged`, the run already has a metrics file."""
        with pytest.raises(error), run_folder.create_and_lock(folder):
            run_folder.claim(folder, recipe())
            (folder / "tokenizer").mkdir(exist_ok=True)
            (folder / "cache" / "train").mkdir(parents=True, exist_ok=True)
            if logged:
                (folder / "metrics.jsonl").touch()
            raise error("no such file")

    def test_new_folder_and_its_parents_are_removed(self, tmp_path):
        self.fail(tmp_path / "a" / "b")
        assert not list(tmp_path.iterdir())

    def test_existing_files_are_kept(self, tmp_path):
        (tmp_path / "a").mkdir()
        self.fail(tmp_path / "a")
        assert (tmp_path / "a").is_dir() and not list((tmp_path / "a").iterdir())
        (tmp_path / "a" / "notes").touch()
        (tmp_path / "a" / "tokenizer").mkdir()
        self.fail(tmp_path / "a")
        left = {path.name for path in (tmp_path / "a").iterdir()}
        assert left == {"notes", "tokenizer"}

    def test_started_run_is_kept(self, tmp_path):
        self.fail(tmp_path / "a", logged=True)
        assert (tmp_path / "a" / "config.yaml").exists()

    @pytest.mark.parametrize("error", [WorkerLostError, KeyboardInterrupt])
    def test_interrupted_start_is_kept(self, tmp_path, error):
        self.fail(tmp_path / "a", error)
        assert (tmp_path / "a" / "cache").exists()

    def test_busy_folder_is_kept(self, tmp_path):
        with run_folder.create_and_lock(tmp_path):
            run_folder.claim(tmp_path, recipe())
            with pytest.raises(RunBusyError), run_folder.create_and_lock(tmp_path):
                pytest.fail("locked twice")
            assert (tmp_path / "config.yaml").exists()


def check(progress, allow_changes=False, **changes):
    values = {"text": "a", "replicas": 2} | changes
    run_folder.check_unchanged("run", progress, allow_changes, **values)


def settings(*overrides):
    files = "data.train={source: a, target: b}"
    beam = "training.validation_beam_size=2"
    return validation_settings(load_recipe("files", [files, beam, *overrides]))


@pytest.mark.fault("F06", "changed text or subwords: error; `--allow-changes` resumes")
def test_check_text_rejects_changed_text():
    progress = Progress()
    for _ in range(2):
        check(progress)
    with pytest.raises(
        RunError, match=r"run: the text of data\.train, .* have changed"
    ):
        check(progress, text="b")
    assert progress.text == "a"
    check(progress, True, text="b")
    assert progress.text == "b"
    # A text without a fingerprint is not checked.
    check(progress, text=None)
    check(progress, text="c")


@pytest.mark.fault("F06", "an error names both numbers of replicas")
def test_check_replicas_rejects_changed_number():
    progress = Progress()
    check(progress)
    with pytest.raises(RunError, match=r"on 2 replica\(s\)\. Now there are 4.*`all"):
        check(progress, replicas=4)
    assert progress.replicas == 2
    check(progress, True, replicas=4)
    assert progress.replicas == 4


def test_changed_validation_text_discards_the_best_score():
    """New scores cannot be compared with scores on other text."""
    progress = Progress()
    for _ in range(2):
        check(progress, validation_text="a")
    progress.record_score("bleu", 20.0)
    progress.record_score("bleu", 15.0)
    with pytest.raises(RunError, match=r"text of data\.validation .* have changed"):
        check(progress, validation_text="b")
    assert (progress.best_score, progress.validations_since_best) == (20.0, 1)
    check(progress, True, validation_text="b")
    assert (progress.best_score, progress.validations_since_best) == (None, 0)
    # Without validation or a fingerprint, nothing is known about the text.
    check(progress, validation_settings="other")
    assert (progress.validation_text, progress.validation_settings) == ("b", None)


GREEDY = "training.validation_beam_size=1"


@pytest.mark.parametrize(
    ("before", "after", "is_kept"),
    [
        ((), ("evaluation.lowercase=true",), False),
        ((), ("training.validation_sentences=3",), False),
        ((), (GREEDY,), False),
        ((), ("decoding.length_penalty=1.4",), False),
        # The beam size of validation replaces this one.
        ((), ("decoding.beam_size=9",), True),
        ((), ("training.learning_rate=0.1",), True),
        # The penalty does not matter to greedy search.
        ((GREEDY,), (GREEDY, "decoding.length_penalty=1.4"), True),
    ],
)
def test_changed_validation_settings_discard_the_best_score(
    before, after, is_kept, caplog
):
    progress = Progress()
    check(progress, validation_text="a", validation_settings=settings(*before))
    progress.record_score("bleu", 20.0)
    check(progress, validation_text="a", validation_settings=settings(*after))
    assert progress.best_score == (20.0 if is_kept else None)
    assert ("settings of validation have changed" in caplog.text) != is_kept
