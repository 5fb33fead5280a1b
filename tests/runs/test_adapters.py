"""Fine-tuning by low-rank adapters, and their files."""

import json
import shutil

import numpy as np
import pytest
from phrases_run import small_recipe
from safetensors.numpy import load_file, save_file

import keras_transformer as kt
from keras_transformer.errors import ModelError, RecipeError, RunError
from keras_transformer.interop.peft import _projections, apply_adapters
from keras_transformer.layers.adapters import count_adapter_weights
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
        num_stored = sum(arrays[name].size for name in weights)
    model = load_model(adapted[0])[2]
    assert count_adapter_weights(model, RANK, TARGETS) == num_stored


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
    assert settings["base_model_name_or_path"] == str(base)
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
        ({"use_dora": True}, {}, "adapters with use_dora cannot be applied"),
        ({"bias": "lora_only"}, {}, "Received: bias='lora_only'"),
        ({"modules_to_save": ["lm_head"]}, {}, "with modules_to_save cannot be"),
        ({"alora_invocation_tokens": [1, 2]}, {}, "alora_invocation_tokens cannot"),
        ({"init_lora_weights": "pissa_niter_4"}, {}, "'init_lora_weights' is wrong"),
        ({"alpha_pattern": {"(a*)*b": 4}}, {}, r"'alpha_pattern.\(a\*\)\*b"),
        ({"target_modules": ["v_proj"]}, {}, r"none for model\.encoder\.layers\.0\."),
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


def test_pickled_adapters_are_named(base, adapted, tmp_path):
    folder = shutil.copytree(adapted[0] / "adapters", tmp_path / "a")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"adapter_model\.bin in place of"):
        kt.open_model(base, adapters=[folder])


def test_patterns_change_rank_and_alpha(base, adapted, tmp_path):
    """The values of the first pattern that matches the end of a name hold."""
    patterns = {
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {r"decoder\..*fc1": 12.0, "1.fc1": 3, "fc1|q_proj": 9},
    }
    source = adapted[0] / "adapters"
    stored = load_file(source / "adapter_model.safetensors")
    cut = {
        name: array[:2] if "_A." in name else array[:, :2]
        for name, array in stored.items()
        if "q_proj" in name
    }
    cut = {name: np.ascontiguousarray(array) for name, array in cut.items()}
    folder = changed_folder(source, tmp_path / "a", patterns, **cut)
    plain, changed = (load_model(base)[2] for _ in range(2))
    apply_adapters(changed, [folder])
    found = {
        name: dense.kernel - before.kernel
        for (name, dense, _), (_, before, _) in zip(
            _projections(changed), _projections(plain), strict=True
        )
    }
    for name, difference in found.items():
        if f"{name}lora_A.weight" not in stored:
            assert not np.any(difference)
            continue
        is_query = "q_proj" in name
        rank = 2 if is_query else RANK
        alpha = ALPHA
        if "fc1" in name:
            alpha = 12 if "decoder" in name else 3 if "layers.1" in name else 9
        elif is_query:
            alpha = 9
        arrays = stored | cut
        product = arrays[f"{name}lora_B.weight"] @ arrays[f"{name}lora_A.weight"]
        norm = alpha / rank * np.linalg.norm(product)
        np.testing.assert_allclose(np.linalg.norm(difference), norm, rtol=1e-4)


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
