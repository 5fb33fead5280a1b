"""Fine-tuning by low-rank adapters, and their files."""

import json
import shutil

import numpy as np
import pytest
from phrases_run import small_recipe
from safetensors.numpy import load_file, save_file

import keras_transformer as kt
from keras_transformer.errors import ModelError, RecipeError, RunError
from keras_transformer.interop.peft import apply_adapters
from keras_transformer.recipes import load_recipe
from keras_transformer.runs.train import train
from keras_transformer.saving.info import model_info
from keras_transformer.saving.load import load_model

RANK, ALPHA = 3, 6.0
TARGETS = ("query", "inner", "outer", "output")
SETTINGS = [
    f"training.lora={{rank: {RANK}, alpha: {ALPHA}, layers: [{', '.join(TARGETS)}]}}",
    *("training.validation_bleu=false", "training.average_checkpoints=1"),
]


@pytest.fixture(scope="module")
def base(phrases_run, tmp_path_factory):
    return shutil.copytree(phrases_run[0], tmp_path_factory.mktemp("base") / "run")


@pytest.fixture(scope="module")
def recipe(base):
    return small_recipe(*SETTINGS, f"training.initial_model={base}")


@pytest.fixture(scope="module")
def adapted(recipe, tmp_path_factory):
    """Folder of a finished run, and its summary."""
    folder = tmp_path_factory.mktemp("adapted") / "run"
    return folder, train(recipe, folder, progress=False)


def kernels(path):
    """Returns the weights of a model by their paths in it."""
    model = load_model(path)[2]
    return {each.path.split("/", 1)[1]: each.numpy() for each in model.weights}


def test_only_products_of_the_given_rank_are_added(base, adapted):
    folder, summary = adapted
    before, after = kernels(base), kernels(folder)
    assert before.keys() == after.keys()
    changed = {name for name in before if (before[name] != after[name]).any()}
    expected = {f"{name}/kernel" for name in TARGETS}
    assert {"/".join(name.split("/")[-2:]) for name in changed} == expected
    for name in changed:
        singular = np.linalg.svd(after[name] - before[name], compute_uv=False)
        assert singular[RANK - 1] > 1e-4 > 20 * singular[RANK]
    assert summary["adapters"] == str(folder / "adapters")


def test_checkpoints_contain_only_adapters(adapted):
    (path, *_) = sorted((adapted[0] / "checkpoints").glob("*.npz"))
    with np.load(path) as arrays:
        weights = [name for name in arrays if name.startswith("weights/")]
        assert weights and all("/lora_" in name for name in weights)


@pytest.mark.slow
def test_resumed_run_has_the_same_weights(recipe, adapted, base, tmp_path, monkeypatch):
    from keras_transformer.training.trainer import Trainer

    folder, real = tmp_path / "run", Trainer.save

    def interrupt(trainer, *reason):
        real(trainer, *reason)
        if trainer.progress.step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "save", interrupt)
        train(recipe, folder, progress=False)
    # Before the end, the run opens with the adapters of its newest checkpoint.
    before, after = kernels(base), kernels(folder)
    assert before.keys() == after.keys()
    assert model_info(folder)["parameters"] == sum(map(np.size, before.values()))
    name = next(each for each in before if each.endswith("/inner/kernel"))
    assert 0 < np.abs(after[name] - before[name]).max() < 1
    with pytest.raises(RunError, match=r"do not fit these changes: training\.lora"):
        train(
            small_recipe(
                *SETTINGS,
                *(f"training.initial_model={base}", "training.lora.rank=4"),
            ),
            folder,
            progress=False,
            allow_changes=True,
        )
    # The run has a copy of the initial model.
    moved = base.rename(base.with_name("moved"))
    try:
        train(recipe, folder, progress=False)
    finally:
        moved.rename(base)
    found, expected = kernels(folder), kernels(adapted[0])
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], name)


def test_adapters_give_the_trained_model(base, adapted, tmp_path):
    folder = adapted[0]
    opened = kt.open_model(base, adapters=[folder / "adapters"])
    for weight, expected in zip(
        opened.model.weights, load_model(folder)[2].weights, strict=True
    ):
        np.testing.assert_allclose(weight, expected, atol=1e-6)
    # In turn, their products add up.
    opened = kt.open_model(base, adapters=[folder / "adapters"] * 2)
    twice = {w.path.split("/", 1)[1]: w.numpy() for w in opened.model.weights}
    before, after = kernels(base), kernels(folder)
    for name, weight in twice.items():
        expected = 2 * after[name] - before[name]
        np.testing.assert_allclose(weight, expected, atol=1e-6)


def test_files_are_those_of_peft(base, adapted, tmp_path):
    """W + alpha / r B A, with names and dimensions of the Hugging Face format."""
    kt.interop.export_huggingface(kt.open_model(base), tmp_path / "base")
    kt.interop.export_huggingface(kt.open_model(adapted[0]), tmp_path / "merged")
    before, after = (
        load_file(tmp_path / each / "model.safetensors") for each in ("base", "merged")
    )
    stored = load_file(adapted[0] / "adapters/adapter_model.safetensors")
    settings = json.loads((adapted[0] / "adapters/adapter_config.json").read_text())
    targets = ["fc1", "fc2", "out_proj", "q_proj"]
    assert settings["target_modules"] == targets
    assert (settings["r"], settings["lora_alpha"]) == (RANK, ALPHA)
    seen = set()
    for name, weight in before.items():
        prefix = f"base_model.model.{name.removesuffix('weight')}lora_"
        if f"{prefix}A.weight" in stored:
            seen |= {f"{prefix}A.weight", f"{prefix}B.weight"}
            a, b = stored[f"{prefix}A.weight"], stored[f"{prefix}B.weight"]
            weight = weight + ALPHA / RANK * (b @ a)
        np.testing.assert_allclose(after[name], weight, atol=1e-6)
    assert seen == {*stored}


def changed_folder(source, folder, settings, **arrays):
    shutil.copytree(source, folder)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | dict(settings)))
    path = folder / "adapter_model.safetensors"
    save_file(load_file(path) | arrays, path)
    return folder


@pytest.mark.parametrize(
    ("settings", "arrays", "message"),
    [
        ({"peft_type": "IA3"}, {}, "adapter_config.json: 'peft_type' is wrong: .*LORA"),
        ({"use_dora": True}, {}, "adapter_config.json: 'use_dora' is wrong"),
        ({"init_lora_weights": "pissa_niter_4"}, {}, "'init_lora_weights' is wrong"),
        ({"rank_pattern": {"q_proj": 4}}, {}, "must have no rank_pattern"),
        ({"r": 4}, {}, r"lora_A.weight must have the shape \[4, 16\]"),
        *(
            ({}, {name: np.zeros((3, 3), "float32")}, f"unexpected array '{name}'")
            for name in (
                "base_model.model.model.shared.lora_embedding_A",
                "base_model.model.lm_head.lora_A.weight",
                "base_model.model.model.shared.weight",
            )
        ),
    ],
)
def test_other_adapters_are_refused(base, adapted, tmp_path, settings, arrays, message):
    folder = changed_folder(adapted[0] / "adapters", tmp_path / "a", settings, **arrays)
    with pytest.raises(ModelError, match=message):
        kt.open_model(base, adapters=[folder])


def test_run_in_place_of_its_adapters_is_refused(base, adapted):
    with pytest.raises(ModelError, match=r"run: contains no adapter_config\.json"):
        kt.open_model(base, adapters=[adapted[0]])


def test_adapters_of_other_weights_give_a_warning(adapted, base, caplog):
    model = load_model(base)[2]
    apply_adapters(model, [adapted[0] / "adapters"])
    assert caplog.text == ""
    apply_adapters(model, [adapted[0] / "adapters"])
    assert "trained for a model with other weights" in caplog.text


def test_adapters_require_an_initial_model():
    with pytest.raises(RecipeError, match="lora requires initial_model"):
        load_recipe("phrases", ["training.lora={rank: 2}"])
