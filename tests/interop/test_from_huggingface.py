"""Import of Hugging Face folders, compared with the library `transformers` and NumPy.

`ask_transformers.py` wrote the library's results to `transformers_results.json`.
`toolkit_models.logits` computes the expected logits in NumPy.
"""

import json
import pathlib

import numpy as np
import pytest
from benchmark_scripts import load_script
from import_checks import import_error, model_logits
from layer_checks import numpy
from toolkit_models import (
    HUGGINGFACE_MODELS,
    PIECES,
    SOURCE,
    TARGET,
    huggingface_arrays,
    huggingface_config,
    huggingface_model,
    logits,
    random_arrays,
    safetensors,
    write_huggingface,
)

import keras_transformer as kt
from keras_transformer.decoding import BeamSearch, SpecialIds, translate_ids
from keras_transformer.errors import ModelError
from keras_transformer.interop.from_huggingface import import_huggingface

agreement = load_script("huggingface_agreement")
POSITIONS = "model.encoder.embed_positions.weight"
RESULTS = json.loads(
    pathlib.Path(__file__).with_name("transformers_results.json").read_text()
)


@pytest.mark.parametrize("name", HUGGINGFACE_MODELS)
def test_imported_model_matches_transformers(tmp_path, name):
    arrays, config = huggingface_model(name)
    imported = import_huggingface(write_huggingface(tmp_path / "m", arrays, config))
    # transformers also computes a logit for padding, the last id.
    expected = np.array(RESULTS["logits"][name])[:, :-1]
    np.testing.assert_allclose(model_logits(imported.model), expected, atol=1e-4)
    # `SOURCE` has five ids, so the limit is 12, as in ask_transformers.py.
    found, _ = translate_ids(
        imported.model,
        np.array([SOURCE], "int32"),
        kt.BeamSearch(1, extra_length=7),
        SpecialIds.of(imported.tokenizer.target),
    )
    # At the length limit, transformers forces the end id. This search does not.
    *expected, end_id = RESULTS["greedy"][name]
    assert end_id == SOURCE[-1]
    assert numpy(found)[0, 0, : len(expected)].tolist() == expected


def test_import_for_marian_matches_numpy(tmp_path):
    arrays = random_arrays()
    folder = write_huggingface(tmp_path / "m", arrays)
    imported = import_huggingface(folder, "marian")
    expected = logits(arrays, SOURCE, TARGET, "marian")
    np.testing.assert_allclose(model_logits(imported.model), expected, atol=2e-5)
    assert "not transformers" in imported.card_rows["logits match"]


def test_untied_output_matrix_is_imported(tmp_path):
    arrays = random_arrays(tied=False)
    config = huggingface_config(tied=False)
    imported = import_huggingface(write_huggingface(tmp_path / "m", arrays, config))
    expected = logits(arrays, SOURCE, TARGET, "huggingface")
    np.testing.assert_allclose(model_logits(imported.model), expected, atol=2e-5)


def test_card_and_settings_come_from_the_folder(huggingface):
    imported = import_huggingface(huggingface)
    assert imported.license == "apache-2.0"
    assert imported.decoding == {
        "beam_size": 3,
        "length_penalty": 0.5,
        "length_penalty_kind": "power",
    }
    assert "--engine marian" in imported.card_rows["closer to Marian"]
    assert imported.model.vocabulary_size == len(PIECES) + 2
    assert imported.tokenizer.pieces()[-2:] == ["<pad>", "<s>"]
    # The generation config takes precedence.
    path = huggingface / "generation_config.json"
    path.write_text(json.dumps({"num_beams": 2, "early_stopping": True}))
    decoding = import_huggingface(huggingface).decoding
    assert (decoding["beam_size"], decoding["length_penalty"]) == (2, 0.5)
    assert decoding["patience"] == 1


@pytest.mark.parametrize(
    ("text", "license"),
    [
        ("\ufeff---\nlicense: mit\n---\n", "mit"),
        ("---\r\nlicense: mit\r\n---\r\n", "mit"),
        ("---\nlicense:\n- cc-by-4.0\n- mit\n---\n", "cc-by-4.0, mit"),
        ('---\nlicense: "cc-by-4.0" # as on the page\n---', "cc-by-4.0"),
        ('---\nlicense: "\\ud800\\e"\n---\n', r"\ud800\x1b"),
        ("---\nlicense: 7\n---\n", None),
        ("---\nlicense: [7]\n---\n", None),
        ("---\nlicense: []\n---\n", None),
        ("---\n- license: mit\n---\n", None),
        ("---\nlicense: mit\nlicense: gpl\n---\n", None),
        ("---\nlicense: mit\n", None),
        ("---\nlanguage: de\n---\nlicense: GPL-3.0 for the scripts only\n", None),
    ],
)
def test_license_is_yaml(huggingface, text, license):
    (huggingface / "README.md").write_bytes(text.encode())
    assert import_huggingface(huggingface).license == license


def test_half_precision_and_shards_give_the_same_model(tmp_path):
    arrays = random_arrays()
    folder = write_huggingface(tmp_path / "m", arrays, dtype="F16")
    expected = logits(arrays, SOURCE, TARGET, "huggingface")
    found = model_logits(import_huggingface(folder).model)
    np.testing.assert_allclose(found, expected, atol=0.05)
    (folder / "model.safetensors").unlink()
    places = {}
    stored = huggingface_arrays(arrays)
    for number, names in enumerate((list(stored)[::2], list(stored)[1::2])):
        shard = f"model-{number}.safetensors"
        content = safetensors({name: stored[name] for name in names})
        (folder / shard).write_bytes(content)
        places |= dict.fromkeys(names, shard)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    found = model_logits(import_huggingface(folder).model)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    for name in ("../m/model-0.safetensors", 7, ["model-0.safetensors"], "", ".."):
        index.write_text(json.dumps({"weight_map": {**places, "x": name}}))
        assert "weight_map must map" in import_error(import_huggingface, folder)
    (folder / "more.safetensors").write_bytes(content)
    index.write_text(json.dumps({"weight_map": {**places, "x": "more.safetensors"}}))
    error = import_error(import_huggingface, folder)
    assert "more.safetensors: another shard also contains" in error


@pytest.mark.parametrize(
    ("name", "reason"),
    [("d", "d: not a safetensors file"), ("a\0b", "not a file name")],
)
def test_shards_must_be_files(huggingface, name, reason):
    (huggingface / "model.safetensors").unlink()
    (huggingface / "d").mkdir()
    index = huggingface / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(ModelError) as caught:
        import_huggingface(huggingface)
    assert reason in str(caught.value)


def test_learned_start_vector_is_kept(tmp_path):
    arrays = random_arrays()
    folder = write_huggingface(tmp_path / "m", arrays)
    stored = huggingface_arrays(arrays)
    stored["model.shared.weight"][-1] = start = np.arange(8) / 10
    (folder / "model.safetensors").write_bytes(safetensors(stored))
    model = import_huggingface(folder).model
    assert model.variations.zero_start_id is None
    # The positional encoding of transformers has all sines before the cosines. This
    # package alternates them, so the import permutes the columns of embeddings.
    row = model.token_embedding.embeddings.numpy()[-1]
    np.testing.assert_allclose(row[::2], start[:4], rtol=1e-6)
    np.testing.assert_allclose(row[1::2], start[4:], rtol=1e-6)


def sinusoids():
    """Returns the positions that older files contain, `[512, 8]`."""
    angles = np.arange(512)[:, None] / 10000 ** (np.arange(0, 8, 2) / 8)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def test_repeated_matrices_must_be_equal(huggingface):
    stored = huggingface_arrays(random_arrays())
    extra = {
        "model.encoder.embed_tokens.weight": stored["model.shared.weight"],
        "lm_head.weight": stored["model.shared.weight"],
        "model.decoder.embed_positions.weight": sinusoids(),
    }
    path = huggingface / "model.safetensors"
    path.write_bytes(safetensors({**stored, **extra}))
    import_huggingface(huggingface)
    for name in extra:
        changed = {**extra, name: extra[name] + 0.001}
        path.write_bytes(safetensors({**stored, **changed}))
        message = import_error(import_huggingface, huggingface)
        assert name in message and "faulty conversion" in message


@pytest.mark.parametrize(
    ("dtype", "error"), [("F32", 2e-5), ("F16", 2e-3), ("BF16", 2e-2)]
)
def test_positions_may_be_rounded_to_their_type(huggingface, dtype, error):
    stored = huggingface_arrays(random_arrays())
    path = huggingface / "model.safetensors"
    stored[POSITIONS] = sinusoids()
    path.write_bytes(safetensors(stored, dtype))
    import_huggingface(huggingface)
    stored[POSITIONS] = sinusoids() + error
    path.write_bytes(safetensors(stored, dtype))
    message = import_error(import_huggingface, huggingface)
    assert f"{POSITIONS} must contain sinusoidal positions" in message


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.backends
def test_bin_file_may_contain_parameters_and_rounded_positions(huggingface, dtype):
    import torch

    (huggingface / "model.safetensors").unlink()
    stored = {**huggingface_arrays(random_arrays()), POSITIONS: sinusoids()}
    state = {
        name: torch.nn.Parameter(torch.tensor(array).to(getattr(torch, dtype)))
        for name, array in stored.items()
    }
    torch.save(state, huggingface / "pytorch_model.bin")
    found = import_huggingface(huggingface).model.token_embedding.embeddings.numpy()
    row = state["model.shared.weight"][2].detach().float().numpy()
    # The import alternates the first and the second half of the columns.
    np.testing.assert_array_equal(found[2], row.reshape(2, 4).T.ravel())
    if dtype != "float32":
        # In single precision, the same errors are too large.
        full = {name: tensor.float() for name, tensor in state.items()}
        torch.save(full, huggingface / "pytorch_model.bin")
        message = import_error(import_huggingface, huggingface)
        assert "must contain sinusoidal positions" in message


def test_bfloat16_weights_are_the_upper_halves_of_float32(huggingface):
    stored = huggingface_arrays(random_arrays())
    # 1.0078125 is 0x3f810000. The next number, 1.015625, is 0x3f820000.
    stored["model.shared.weight"][2] = [1.0078125, 1.01, 1.014, -3, 0, 0.5, 65536, 1]
    (huggingface / "model.safetensors").write_bytes(safetensors(stored, "BF16"))
    found = import_huggingface(huggingface).model.token_embedding.embeddings.numpy()
    # The import alternates the first and the second half of the columns.
    expected = [1.0078125, 0, 1.0078125, 0.5, 1.015625, 65536, -3, 1]
    np.testing.assert_array_equal(found[2], expected)


def test_import_warns_about_settings_without_an_equivalent(huggingface, caplog):
    tokenizer = import_huggingface(huggingface).tokenizer.target
    neutral = {
        **{"min_length": 0, "repetition_penalty": 1, "forced_bos_token_id": None},
        **{"max_length": 512, "forced_eos_token_id": tokenizer.end_id},
        "bad_words_ids": [[tokenizer.pad_id]],
    }
    path = huggingface / "generation_config.json"
    path.write_text(json.dumps({**neutral, "temperature": 0.5}))
    import_huggingface(huggingface)
    assert not caplog.messages
    path.write_text(json.dumps({"bad_words_ids": [[3, 4]], "max_new_tokens": 9}))
    import_huggingface(huggingface)
    assert caplog.messages.pop().endswith(": bad_words_ids=[[3, 4]], max_new_tokens=9")
    caplog.clear()
    settings = {**neutral, "encoder_repetition_penalty": 3, "do_sample": True}
    (huggingface / "generation_config.json").write_text(json.dumps(settings))
    import_huggingface(huggingface)
    (message,) = caplog.messages
    assert message == (
        f"{huggingface}: settings without an equivalent are ignored: do_sample=True, "
        "encoder_repetition_penalty=3"
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"no_repeat_ngram_size": 3, "min_length": 6}, (3, 1.0, 5)),
        ({"repetition_penalty": 1.3, "min_length": 1}, (0, 1.3, 0)),
        ({"no_repeat_ngram_size": 0, "repetition_penalty": 1}, (0, 1.0, 0)),
    ],
)
def test_settings_of_steering_are_read(huggingface, caplog, settings, expected):
    (huggingface / "generation_config.json").write_text(json.dumps(settings))
    search = BeamSearch(**import_huggingface(huggingface).decoding)
    names = "no_repeat_ngram_size", "repetition_penalty", "min_length"
    assert tuple(getattr(search, name) for name in names) == expected
    assert not caplog.messages and search.steering().keys() <= {*settings}


@pytest.mark.slow
@pytest.mark.backends
@pytest.mark.parametrize("options", agreement.RANDOM_MODELS, ids=str)
def test_imported_random_model_matches_transformers(tmp_path, options):
    pytest.importorskip("transformers", reason="computes the expected logits")
    encoder, decoder, *others = options
    model = agreement.write_random(tmp_path / "m", (encoder, decoder), *others)
    found = agreement.compare_random(tmp_path / "m", model)
    # The largest difference between logits, and the number of different translations.
    assert found["largest"] < 1e-4
    assert found["different"] == 0
