"""Values of recipe keys that are `auto`, which fit the text and the machine.

The recipe `files` sets all `AUTOMATIC_KEYS` to `auto`. The expected values follow
docs/how-to/train-on-your-data.md.
"""

import gzip
import json
import random
import subprocess
import sys

import pytest

from keras_transformer import machine as machines
from keras_transformer.machine import Gpu, Machine
from keras_transformer.recipes import RecipeError, automatic, dump_recipe, load_recipe
from keras_transformer.recipes.automatic import TextSize, measure_training_text
from keras_transformer.recipes.data_sections import DATA_KINDS

# A `Machine` has cores, bytes of memory and GPUs. A `Gpu` has bytes of memory and a
# compute capability.
LAPTOP = Machine(4, 8 << 30)
GPU = Machine(16, 64 << 30, (Gpu(24 << 30, 8.6),))
FILES = "data.train={source: a.en, target: a.de}"
TEXT = {"train": {"source": "a.en", "target": "a.de"}}


@pytest.fixture
def load(monkeypatch):
    """Function that loads a recipe as if its text had `pairs` pairs, on `machine`."""
    monkeypatch.delenv("TF_CONFIG", raising=False)

    def load(pairs, machine=LAPTOP, *overrides, recipe="files", data=FILES, **options):
        # 70 bytes per pair, 100 distinct characters, and a distinct word per pair.
        text = TextSize(pairs, 70 * pairs, 100, pairs) if pairs else None
        monkeypatch.setattr(automatic, "measure_training_text", lambda _: text)
        monkeypatch.setattr(machines, "find_machine", lambda: machine)
        overrides = [*([data] if data else []), *overrides]
        return load_recipe(recipe, overrides, **options)

    return load


@pytest.mark.parametrize(
    ("pairs", "machine", "size", "vocabulary_size", "batch_tokens", "precision"),
    [
        (29_000, LAPTOP, "tiny", 8_000, 4_096, None),
        (29_000, GPU, "tiny", 8_000, 4_096, "bfloat16"),
        (200_000, LAPTOP, "small", 16_000, 8_192, None),
        (4_500_000, LAPTOP, "small", 37_000, 8_192, None),
        (4_500_000, GPU, "base", 37_000, 25_000, "bfloat16"),
        # 260 special and byte ids, 100 characters, and 1,000 words.
        (1_000, LAPTOP, "tiny", 1_360, 1_024, None),
        # A text of unknown size counts as 30,000 pairs.
        (None, LAPTOP, "tiny", 8_000, 4_096, None),
    ],
)
def test_files_recipe_fits_text_and_machine(
    load, pairs, machine, size, vocabulary_size, batch_tokens, precision
):
    recipe = load(pairs, machine)
    assert recipe.model.size == size
    assert recipe.tokenizer.vocabulary_size == vocabulary_size
    assert recipe.training.batch_tokens == batch_tokens
    assert recipe.training.mixed_precision == precision
    assert recipe.model.dropout == (0.1 if size == "base" else 0.3)


@pytest.mark.parametrize(
    ("pairs", "machine", "steps", "interval"),
    [
        # 29,000 pairs have 507,500 tokens, or 123 batches. 100 epochs are more than the
        # 10,000 steps for the size `tiny`.
        (29_000, LAPTOP, 10_000, 100),
        (4_500_000, GPU, 100_000, 1_000),
        # A run is divided by 100, but a checkpoint takes time.
        (1_000, LAPTOP, 1_700, 50),
    ],
)
def test_checkpoints_are_counted_in_steps(load, pairs, machine, steps, interval):
    training = load(pairs, machine).training
    assert (training.steps, training.checkpoint_steps) == (steps, interval)
    assert training.checkpoint_minutes is None
    training = load(pairs, machine, "training.checkpoint_minutes=5").training
    assert (training.checkpoint_minutes, training.checkpoint_steps) == (5, None)


@pytest.mark.parametrize(
    ("pairs", "steps"), [(200, 100), (800, 200), (29_000, 1_200), (4_500_000, 30_000)]
)
def test_fine_tuning_is_short_and_slow(load, pairs, steps):
    new = load(pairs, LAPTOP).training
    training = load(pairs, LAPTOP, "training.initial_model=old.keras").training
    assert training.steps == steps
    assert training.learning_rate == new.learning_rate / 10


@pytest.mark.parametrize(
    ("pairs", "settings", "is_advised"),
    [
        (9_999, [], True),
        (10_000, [], False),
        (1_000, ["training.initial_model=old.keras"], False),
    ],
)
def test_little_text_is_advised_to_fine_tune(load, pairs, settings, is_advised):
    lines = []
    load(pairs, LAPTOP, *settings, report=lines.append)
    advice = f"only {pairs:,} pairs: fine-tuning a model"
    assert lines[-1].startswith(advice) is is_advised
    assert any("--from MODEL" in line for line in lines) is is_advised


def test_both_directions_double_the_text_of_an_epoch(load):
    both = load(1_000, LAPTOP, "data.train.bidirectional=true").training
    double = load(2_000, LAPTOP).training
    assert both.batch_tokens == double.batch_tokens == 2_048
    assert both.steps == double.steps == 1_700


def test_report_gives_a_reason_for_each_value(load):
    lines = []
    validation = "data.validation={source: v.en, target: v.de}"
    load(29_000, LAPTOP, validation, report=lines.append)
    assert lines[0] == "settings for 29,000 pairs on 4 CPU core(s), 8.0 GiB of memory:"
    assert "  model.size: tiny (for up to 50,000 pairs)" in lines
    keys = [line.split(":")[0].strip() for line in lines[1:]]
    assert keys == list(automatic.AUTOMATIC_KEYS)
    assert all(line.endswith(")") for line in lines[1:])
    assert "  training.learning_rate: 0.005 (for the size tiny)" in lines
    lines.clear()
    load(29_000, LAPTOP, "model.d_ff=512", report=lines.append)
    assert "  training.learning_rate: 0.005 (for d_model 128)" in lines
    # Without validation text, its interval has no effect.
    assert not any("validation_steps" in line for line in lines)


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        # 1,000 pairs of 70 bytes are 17,500 tokens of 4 bytes.
        (["steps=35", "batch_tokens=5000"], "10 epochs"),
        (["steps=28", "batch_tokens=5000"], "8 epochs"),
        (["steps=5", "batch_tokens=5000"], "1.4 epochs"),
        (["steps=7", "batch_tokens=2500"], "1 epoch"),
        (["steps=1", "batch_tokens=2500"], "0.1 epochs"),
        (["steps=70000", "batch_tokens=2500"], "10,000 epochs"),
        (["stages=[{steps: 3}, {steps: 4}]", "batch_tokens=5000"], "2 epochs"),
    ],
)
def test_epochs_are_estimated_from_tokens(load, settings, epochs):
    recipe = load(1_000, LAPTOP, *(f"training.{each}" for each in settings))
    text = TextSize(1_000, 70_000, 100, 1_000)
    assert automatic.describe_epochs(recipe, text) == epochs


def test_null_validation_steps_are_refused_with_a_remedy(load):
    message = (
        r"training\.validation_steps must be a valid integer\. Received: null\. To "
        r"train without validation, set data\.validation to null$"
    )
    with pytest.raises(RecipeError, match=message):
        load(29_000, LAPTOP, "training.validation_steps=null")


def test_given_values_are_kept_and_others_follow_them(load):
    overrides = ["model.size=base", "training.steps=700", "model.dropout=0.2"]
    recipe = load(29_000, GPU, *overrides)
    assert (recipe.model.size, recipe.model.dropout) == ("base", 0.2)
    assert recipe.training.steps == 700
    # A tenth of the steps, and at least 50.
    assert recipe.training.warmup_steps == 70
    assert recipe.training.validation_steps == 50
    assert recipe.training.learning_rate == 0.0007
    assert recipe.training.batch_tokens == 25_000
    # The other settings follow the width: those of base for d_model above 256.
    recipe = load(29_000, LAPTOP, "model.d_model=512", "training.schedule=noam")
    assert recipe.training.learning_rate is None
    assert recipe.training.batch_tokens == 25_000


def test_large_batches_are_split_to_fit_the_memory(load):
    sizes = ("model.size=big", "training.batch_tokens=25000")
    parts = [
        load(4_500_000, Machine(1, gib << 30), *sizes).training
        for gib in (1024, 32, 16)
    ]
    assert parts[0].gradient_accumulation_steps == 1
    assert parts[1].gradient_accumulation_steps > 1
    assert parts[2].gradient_accumulation_steps > parts[1].gradient_accumulation_steps
    unknown = load(4_500_000, Machine(1, None), *sizes).training
    assert unknown.gradient_accumulation_steps == 1


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        (None, None),
        (6.1, None),
        (7.5, "float16"),
        (8.0, "bfloat16"),
        (12.0, "bfloat16"),
    ],
)
def test_precision_fits_the_gpu(load, capability, expected):
    gpu = Machine(4, 8 << 30, (Gpu(None, capability),))
    training = load(29_000, gpu).training
    assert training.mixed_precision == expected
    assert training.parallel_parts == 1


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 2), (4, 2), (16, 1)])
def test_parallel_parts_fit_the_cores(load, cores, expected):
    machine = Machine(cores, 8 << 30)
    assert load(29_000, machine).training.parallel_parts == expected


def test_workers_with_different_memory_choose_the_same_settings(load, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    sizes = ("model.size=big", "training.batch_tokens=25000")
    recipes = [load(29_000, Machine(8, gib << 30), *sizes) for gib in (4, 64)]
    assert recipes[0] == recipes[1]


@pytest.mark.parametrize(
    "data",
    [
        {"train": {"source": "a.en", "target": "a.de"}},
        {"kind": "tsv", "train": ["a.tsv"]},
        {"kind": "jsonl", "train": ["a.jsonl"]},
        {"kind": "hf", "name": "a/b"},
        {"kind": "records", "train": "a"},
    ],
)
def test_recipe_without_a_model_extends_the_files_recipe(load, data):
    training = {"steps": 700, "checkpoint_steps": 100}
    mine = {"data": data, "training": training, "tokenizer": {"kind": "word_piece"}}
    recipe = load(29_000, recipe=mine, data=None)
    overrides = ["training.steps=700", "training.checkpoint_steps=100"]
    expected = load(29_000, LAPTOP, *overrides, "tokenizer.kind=word_piece")
    assert recipe.model_dump(exclude="data") == expected.model_dump(exclude="data")


@pytest.mark.parametrize(
    ("values", "key", "error"),
    [
        ({"data": TEXT, "model": {"dropout": 0.2}}, "seed", "seed must be"),
        ({"data": {"kind": "phrases"}}, "steps", r"training.steps: auto requires text"),
    ],
)
def test_other_recipes_have_the_defaults_of_the_paper(load, values, key, error):
    recipe = load(29_000, recipe=values, data=None)
    assert (recipe.model.size, recipe.training.batch_tokens) == ("base", 25_000)
    with pytest.raises(RecipeError, match=error):
        load(29_000, LAPTOP, f"training.{key}=auto", recipe=values, data=None)


def test_automatic_size_leaves_room_for_both_vocabularies(load):
    """Half of the 100 characters and 1,000 words are counted for each vocabulary."""
    sizes = []
    for shared in ("true", "false"):
        recipe = load(1_000, LAPTOP, f"tokenizer.shared={shared}")
        sizes.append(recipe.tokenizer.vocabulary_size)
        assert recipe.tokenizer.source_vocabulary_size in (None, sizes[-1])
    # 260 ids are special or single bytes.
    assert sizes == [260 + 100 + 1_000, 260 + 550]


@pytest.mark.parametrize("kind", ["fils", "5", "null", "[files]"])
def test_unknown_kind_is_named_before_auto(kind):
    with pytest.raises(RecipeError, match=r"data\.kind must be one of files, "):
        load_recipe("files", [f"data.kind={kind}"])


@pytest.mark.parametrize(
    "override",
    [
        *("model.size=[1]", "training.batch_tokens=x", "training.steps=-1"),
        *("data.max_length=a", "model.d_model=0", "model.num_heads=1000"),
        *("tokenizer.vocabulary_size=1e9", "data=x", "data.train.source={}", "model=3"),
        *("training=1", "tokenizer=[]", "training.steps=true", "model.d_model=1.5"),
    ],
)
def test_wrong_values_next_to_automatic_ones_are_reported(load, override):
    with pytest.raises(RecipeError, match=override.split("=")[0].split(".")[-1]):
        load(29_000, LAPTOP, override)


@pytest.mark.parametrize("folder", ["checkpoints", "seed-2/checkpoints"])
def test_started_run_keeps_its_values(load, tmp_path, folder):
    run = tmp_path / "run"
    (run / folder).mkdir(parents=True)
    started = load(29_000)
    dump_recipe(started, run / "config.yaml")
    lines = []
    options = {"run": run, "report": lines.append}
    # Before its first checkpoint, a run's settings may still change with its text.
    assert load(4_500_000, GPU, **options).model.size == "base"
    (run / folder / "ckpt-1.npz").touch()
    lines.clear()
    assert load(4_500_000, GPU, **options) == started
    assert lines == []
    # An invalid config.yaml is ignored here. The command `train` reports it.
    (run / "config.yaml").write_text("model: x")
    assert load(4_500_000, GPU, **options).model.size == "base"
    dump_recipe(started, run / "config.yaml")
    longer = load(4_500_000, GPU, "training.steps=20000", **options)
    assert longer.training.steps == 20_000
    assert longer.training.warmup_steps == started.training.warmup_steps


def test_stored_recipe_provides_automatic_and_missing_values(load):
    for recipe in ("files", {"data": TEXT}):
        started = load(29_000, recipe=recipe)
        assert load(4_500_000, GPU, recipe=recipe) != started
        assert load(4_500_000, GPU, recipe=recipe, stored=started) == started
    changed = load(29_000, LAPTOP, "training.beta_1=0.8", recipe=recipe)
    assert load(4_500_000, GPU, recipe=recipe, stored=changed) == changed


def test_moving_average_replaces_the_average_of_checkpoints(load):
    """The recipe `files` sets `average_checkpoints`, which excludes `ema_momentum`."""
    assert load(29_000).training.average_checkpoints == 5
    for recipe in (
        load(29_000, LAPTOP, "training.ema_momentum=0.99"),
        load(29_000, recipe={"training": {"ema_momentum": 0.99}}),
    ):
        assert recipe.training.average_checkpoints == 1


def test_intervals_follow_from_the_stages(load):
    """As for `training.steps=800`, except that both warm-ups must fit."""
    one = load(29_000, LAPTOP, "training.steps=800").training
    stages = "training.stages=[{steps: 500}, {steps: 300, label_smoothing: 0.2}]"
    staged = load(29_000, LAPTOP, stages).training
    assert (one.steps, one.warmup_steps) == (800, 80)
    assert (staged.steps, staged.warmup_steps) == (800, 30)
    assert staged.checkpoint_steps == one.checkpoint_steps == 50
    assert staged.validation_steps == one.validation_steps == 50


def test_started_run_may_change_its_stages(load, tmp_path):
    """The number of steps follows from the stages, so it is not kept."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ckpt-1.npz").touch()
    for last in (40, 50):
        stages = [{"steps": 30}, {"steps": last}]
        values = {"data": TEXT, "training": {"stages": stages}}
        found = load(29_000, recipe=values, run=tmp_path)
        assert found.training.steps == 30 + last
        dump_recipe(found, tmp_path / "config.yaml")


PAIRS = [("a b", "aa"), ("é", "b"), ("x", "c d e f"), ("b c", "g")]
KINDS = ["files", "tsv", "tsv with names", "csv", "jsonl", "tmx"]


def test_measuring_does_not_load_tensorflow():
    """In a command, whose first lines would otherwise take seconds."""
    code = (
        "import sys; sys.argv[0] = 'keras-transformer'; "
        f"import {automatic.__name__}; print('tensorflow' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code]) == b"False\n"


def measure(data):
    """Measures the text of a section `data`, a dict."""
    return measure_training_text(DATA_KINDS[data["kind"]].model_validate(data))


def write_text(path, lines):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return str(path)


def write_pairs(folder, kind, suffix="", pairs=PAIRS):
    """Writes pairs in the form of a kind of data and returns the section `data`."""
    data = {"kind": kind.split()[0]}
    if kind == "files":
        sides = zip(("source", "target"), zip(*pairs, strict=True), strict=True)
        paths = {side: write_text(folder / f"{side}{suffix}", t) for side, t in sides}
        return data | {"train": {side: [path] for side, path in paths.items()}}
    if kind == "tsv":
        lines = [f"-\t{target}\t{source}" for source, target in pairs]
        data |= {"source": 3, "target": 2}
    if kind == "csv":
        lines = ['"to";"from"', *(f'"{target}";"{source}"' for source, target in pairs)]
        data |= {"source": "from", "target": "to"}
    if kind == "tsv with names":
        lines = ["to\tfrom", *(f"{target}\t{source}" for source, target in pairs)]
        data |= {"source": "from", "target": "to"}
    if kind == "jsonl":
        lines = [json.dumps({"id": 1, "t": {"en": s, "de": t}}) for s, t in pairs]
        data |= {"source": "t.en", "target": "t.de"}
    if kind == "tmx":
        units = [
            f'<tu><tuv xml:lang="de"><seg>{target}</seg></tuv>\n'
            f'<tuv xml:lang="en"><seg>{source}</seg></tuv></tu>'
            for source, target in pairs
        ]
        lines = ["<tmx><body>", *units, "</body></tmx>"]
        data |= {"source": "en", "target": "de"}
    return data | {"train": [write_text(folder / f"pairs{suffix}", lines)]}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", KINDS)
def test_small_files_are_counted_exactly(tmp_path, kind, suffix):
    """Windows adds a byte order mark and "\\r", and some editors end without "\\n"."""
    data = write_pairs(tmp_path, kind, suffix)
    # Pairs, bytes of the longer side, and distinct characters (9 letters, space and
    # newline) and words of both sides.
    num_bytes = len("aa\nb\nc d e f\ng\n")
    assert measure(data) == (4, num_bytes, 11, 10)
    if kind != "files":
        assert measure({**data, "train": data["train"] * 2})[:2] == (8, 2 * num_bytes)
    for path in [] if suffix else tmp_path.iterdir():
        lines = path.read_bytes().removesuffix(b"\n").replace(b"\n", b"\r\n")
        path.write_bytes(b"\xef\xbb\xbf" + lines)
    assert measure(data) == (4, num_bytes, 11, 10)


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [("files", ""), ("files", ".gz"), ("tsv", ""), ("jsonl", ""), ("tmx", "")],
)
def test_large_files_are_extrapolated(tmp_path, monkeypatch, kind, suffix):
    random.seed(1)
    words = [f"{random.randrange(10**6)}" for _ in range(50_000)]
    monkeypatch.setattr(automatic, "_SAMPLE_BYTES", 100_000)
    pairs = zip(words, words, strict=True)
    size = measure(write_pairs(tmp_path, kind, suffix, [*pairs]))
    # The size of a compressed file is estimated less exactly, since gzip reads ahead.
    assert size.pairs == pytest.approx(50_000, rel=0.15 if suffix else 0.01)
    assert size.bytes == pytest.approx(sum(map(len, words)) + 50_000, rel=0.15)


@pytest.mark.parametrize("columns", [(9, 8), ("a", "b")])
@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
def test_text_that_cannot_be_read_has_no_size(tmp_path, kind, columns):
    data = write_pairs(tmp_path, "files")
    cut = write_text(tmp_path / "cut.gz", ["a" * 100])
    with open(cut, "rb+") as file:
        file.truncate(20)
    for bad in ("nowhere", str(tmp_path), cut):
        train = {"source": data["train"]["source"], "target": [bad]}
        assert measure({"kind": "files", "train": train}) is None
    if kind == "jsonl":
        columns = map(str, columns)
    wrong = dict(zip(("source", "target"), columns, strict=True))
    assert measure({**write_pairs(tmp_path, kind), **wrong}) is None


def test_records_have_the_pairs_of_their_shards(tmp_path):
    shards = [{"name": f"{each}.tfrecord", "num_pairs": 300_000} for each in "ab"]
    for shard in shards:
        (tmp_path / shard["name"]).write_bytes(b"x" * 100)
    data = {"kind": "records", "train": str(tmp_path)}
    assert measure(data) is None
    text = json.dumps({"shards": shards, "format": 1})
    (tmp_path / "records.json").write_text(text)
    assert measure(data)[:2] == (600_000, 200)
    (tmp_path / "b.tfrecord").unlink()
    assert measure(data) is None


@pytest.mark.parametrize("kind", ["files", "tsv", "jsonl"])
def test_settings_of_a_recipe_with_only_data_fit_its_text(tmp_path, kind):
    lines, data = [], write_pairs(tmp_path, kind)
    recipe = load_recipe({"data": data}, report=lines.append)
    assert lines[0].startswith("settings for 4 pairs on ")
    assert recipe.model.size == "tiny"
    assert (recipe.training.batch_tokens, recipe.training.steps) == (1024, 1000)
