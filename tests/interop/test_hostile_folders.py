"""Damaged, unsupported and malicious folders of Marian and Hugging Face are refused.

The tables contain, for each case, a change of a valid folder, and text of the error.
"""

import json
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest
import yaml
from import_checks import FileOnUnpickle, import_error, model_logits
from sentencepiece import sentencepiece_model_pb2
from toolkit_models import (
    DECODER,
    PIECES,
    SETTINGS,
    SOURCE,
    TARGET,
    huggingface_arrays,
    huggingface_config,
    logits,
    npz,
    random_arrays,
    safetensors,
    splitter,
)

from keras_transformer.interop.from_huggingface import import_huggingface
from keras_transformer.interop.from_marian import import_marian

# Each alias stands for nine times as many values as the one before it.
ALIASES = "a0: &a0 [1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)


def content(name, data):
    """Returns a change that writes a file of bytes, text or JSON."""
    if not isinstance(data, str | bytes):
        data = json.dumps(data)
    data = data.encode("latin-1") if isinstance(data, str) else data
    return lambda folder: (folder / name).write_bytes(data)


def settings(**changes):
    """Returns a change of the settings in a Marian model."""
    names = {name.replace("_", "-"): value for name, value in changes.items()}
    return lambda folder: (folder / "model.npz").write_bytes(
        npz(random_arrays(), {**SETTINGS, **names})
    )


def yaml_settings(end, start="input-types: []\n"):
    """Returns a change that adds text to a Marian model's settings."""
    text = yaml.safe_dump(SETTINGS) + start + end
    return content("model.npz", npz(random_arrays(), text))


def arrays(**changes):
    """Returns a change of the arrays in a Marian model. Functions get the array."""

    def change(folder):
        stored = random_arrays()
        for name, value in changes.items():
            stored[name] = value(stored[name]) if callable(value) else value
        stored = {name: array for name, array in stored.items() if array is not None}
        (folder / "model.npz").write_bytes(npz(stored))

    return change


def decoder(old, new):
    """Returns a change that replaces text in `decoder.yml`."""
    assert old in DECODER
    return content("decoder.yml", DECODER.replace(old, new))


def member(name, data, **options):
    """Returns a change that adds a member to `model.npz`."""

    def change(folder):
        with zipfile.ZipFile(folder / "model.npz", "a", **options) as archive:
            archive.writestr(name, data)

    return change


def header(text):
    """Returns a change to a `model.npz` of one array with a forged header."""
    text = text.encode().ljust(9100) + b"\n"
    array = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text

    def change(folder):
        (folder / "model.npz").unlink()
        member("encoder_Wemb.npy", array)(folder)

    return change


def remove(name):
    return lambda folder: (folder / name).unlink()


def truncate(name):
    def change(folder):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return change


BEYOND = "more weights than the file contains"
MARIAN = [
    # Settings that are not supported are named with their value.
    *(
        (settings(**{name.replace("-", "_"): value}), f"'{name}' is wrong: ")
        for name, value in {
            "transformer-ffn-depth": 3,
            "transformer-decoder-ffn-depth": 1,
            "transformer-no-projection": True,
            "transformer-no-bias": True,
            "transformer-no-affine": True,
            "transformer-disable-position-embeddings": True,
            "transformer-train-position-embeddings": True,
            "transformer-postprocess-top": "n",
            "transformer-postprocess": "da",
            "lemma-dim-emb": 4,
            "right-left": True,
            "type": "multi-transformer",
            "transformer-ffn-activation": "prelu",
        }.items()
    ),
    *(
        (settings(input_types=value), "'input-types' is wrong: ")
        for value in (["class"], ["sequence"], ["sequence"] * 3, "sequence", [[]], {})
    ),
    (settings(transformer_decoder_dim_ffn=99), "must equal transformer-dim-ffn, 12"),
    *(
        (
            settings(dec_depth=2, transformer_tied_layers=value),
            "transformer-tied-layers",
        )
        for value in ([1], [1, 2, 3], [1, 0], [1, 1.0], [1, True], ["1", "1"], 1, None)
    ),
    *(
        (settings(dim_vocabs=value), "'dim-vocabs")
        for value in (7, [7], ["a", 1], [-1, 3], [True, False])
    ),
    (settings(dim_vocabs=[9, 9]), "vocab.yml: has ids up to 8, and dim-vocabs is [9,"),
    (settings(dim_vocabs=[12, 12]), "has ids up to 10, and dim-vocabs is [12, 12]"),
    *(
        (settings(**{name: 2**30}), BEYOND)
        for name in ("enc_depth", "dim_emb", "transformer_dim_ffn", "dec_depth")
    ),
    *((settings(enc_depth=value), "") for value in (2**70, "x", None, -1, True)),
    # Settings are plain YAML.
    (yaml_settings("x: !!python/name:os.system\n"), "not valid YAML"),
    (yaml_settings(f"{ALIASES}x: *a29\n"), "more than 10,000 values"),
    (yaml_settings("x: &x [*x]\n"), "values"),
    (yaml_settings("dec-depth: 2\n"), "the key dec-depth is given twice"),
    (yaml_settings("input-types: |\n  two\n  lines\n", ""), "'input-types' is wrong"),
    (settings(note="x" * (1 << 17)), "special:model.yml must have at most 65,536 byt"),
    (content("decoder.yml", "[" * 5000), "nested too deeply"),
    (content("decoder.yml", "just text"), "the content is wrong"),
    (content("decoder.yml", "#" * (1 << 17)), "at most 65,536 bytes"),
    (decoder("[model.npz]", "[a.npz, b.npz]"), "'models' is wrong"),
    (decoder("model.npz", "model.bin"), "not quantized .bin files"),
    (decoder("model.npz", "gone.npz"), "no such file"),
    (decoder("vocab.yml", "vocab.fsv"), "factored vocabularies"),
    (decoder("penalty: 0", "penalty: 0.5"), "'word-penalty' is wrong"),
    (decoder("beam-size: 3", "beam-size: 0.5"), "'beam-size' is wrong"),
    (decoder("beam-size: 3", "beam-size: 0"), "'beam-size' is wrong"),
    (decoder("normalize: 0.6", "normalize: -1"), "'normalize' is wrong"),
    (remove("decoder.yml"), "must contain one decoder.yml"),
    # Arrays.
    (arrays(Wpos=np.zeros((3, 8), "float32")), "unexpected array 'Wpos'"),
    (arrays(encoder_l2_ffn_b1=None), "encoder_l2_ffn_b1 is missing"),
    (arrays(Wemb=lambda a: a[:-1]), "So Wemb must have 11 rows. Received shape: [10,"),
    (arrays(Wemb=lambda a: a * np.nan), "not finite"),
    (
        arrays(encoder_l1_self_Wq=np.zeros((8, 9), "float32")),
        "encoder_l1_self_Wq must have the shape [8, 8]. Received: [8, 9]",
    ),
    (arrays(Wemb=np.zeros((11, 8), "int32")), "Received: int32"),
    (arrays(Wemb=np.zeros((11, 8), "float64")), "Received: float64"),
    (arrays(Wemb=np.zeros((11, 8), ">f4")), "Received: >f4"),
    # Archives.
    (truncate("model.npz"), "cannot be read"),
    (member("x.npy", bytes(10 << 20), compression=8), "Arrays must not be compressed"),
    (member("Wemb", b""), "contains an array twice"),
    (member("x.npy", b"bytes"), "Received: bytes"),
    *(
        (header(text), "model.npz: cannot be read")
        for text in (
            "{'descr': (",
            "'''abc",
            "{[]:1}",
            "{'descr': (), }",
            "-" * 9000 + "1",
        )
    ),
    (
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}"),
        "model.npz: cannot be read",
    ),
    # Files of the tokenizer.
    (remove("source.spm"), "source.spm: no such file"),
    (content("source.spm", "x"), "not a SentencePiece model"),
    (content("source.bpe", ""), "subword-nmt"),
]


@pytest.mark.parametrize(("change", "message"), MARIAN)
def test_marian_folder_is_refused(marian, change, message):
    change(marian)
    assert message in import_error(import_marian, marian)


def config(**changes):
    return content("config.json", {**huggingface_config(), **changes})


def forged(headers):
    """Returns a change to a safetensors file of 8 bytes with a forged header."""
    text = json.dumps(headers).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(8)
    return content("model.safetensors", data)


def entry(**changes):
    """Returns the header of an array of two numbers, with changes."""
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


def extended(entries, unused=0):
    """Returns a change that adds arrays to the header, and unused bytes at the end.

    `entries` is a function of a header that exists, and of the size of the data.
    """

    def change(folder):
        data = (folder / "model.safetensors").read_bytes()
        size = 8 + int.from_bytes(data[:8], "little")
        known = json.loads(data[8:size])
        known |= entries(known["model.shared.weight"], len(data) - size)
        text = json.dumps(known).encode()
        head = len(text).to_bytes(8, "little") + text
        content("model.safetensors", head + data[size:] + bytes(unused))(folder)

    return change


POSITIONS = "model.encoder.embed_positions.weight"
INFINITE = huggingface_arrays(random_arrays())
INFINITE["model.shared.weight"][3, 3] = np.inf
NOT_SAFETENSORS = "not a safetensors file"
HUGGINGFACE = [
    *(
        (config(**{name: True}), f"'{name}' is wrong: Input should be False")
        for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm")
    ),
    (config(static_position_embeddings=False), "Input should be True"),
    (config(scale_embedding=False), "'scale_embedding' is wrong"),
    (config(model_type="bart"), "m2m_100 or mbart. Received: 'bart'"),
    # Presets of this package and folders of CTranslate2 have no model_type.
    (config(model_type=None), "need no import"),
    (config(decoder_attention_heads=4), "must equal encoder_attention_heads, 2"),
    (config(decoder_ffn_dim=4), "must equal encoder_ffn_dim, 12"),
    (config(activation_function="mish"), "'activation_function' is wrong"),
    (config(decoder_start_token_id=0), "decoder_start_token_id must be 11"),
    (config(eos_token_id=3), "eos_token_id must be 0, the id of </s>. Received: 3"),
    (config(encoder_layers=2**30), BEYOND),
    (config(encoder_layers="2"), "'encoder_layers' is wrong"),
    (config(d_model=-8), "d_model"),
    (config(num_beams=0), "'num_beams' is wrong"),
    (config(length_penalty="x"), "'length_penalty' is wrong"),
    (content("generation_config.json", {"eos_token_id": 3}), "eos_token_id must be 0"),
    (content("config.json", "[" * 10_000), "nested too deeply"),
    (content("config.json", "[]"), "dict"),
    (
        content("vocab.json", '{"</s>": 0, "<unk>": 1, "a": 3, "<pad>": 4}'),
        "has the id 2",
    ),
    (
        content("vocab.json", '{"</s>": 0, "<unk>": 1, "a": 1, "<pad>": 2}'),
        "the id 1 belongs",
    ),
    (content("vocab.json", {"</s>": 0, "<unk>": 1}), "the last subword must be"),
    (content("vocab.json", {"</s>": 0, "<unk>": "1"}), "must map subwords to ids"),
    (content("vocab.json", ["</s>"]), "must map subwords to ids"),
    (content("vocab.json", '{"\\ud800": 0, "<pad>": 1}'), "is not valid text"),
    (content("source.spm", "x"), "not a SentencePiece model"),
    (content("model.safetensors", safetensors(INFINITE)), "not finite"),
    (content("model.safetensors", ""), NOT_SAFETENSORS),
    (content("model.safetensors", b"\xff" * 64), "at most 104,857,600 are allowed"),
    (forged({"x": entry(data_offsets=[0, 4])}), NOT_SAFETENSORS),
    (forged({"x": entry(data_offsets=[0, 2**60], shape=[2**58])}), NOT_SAFETENSORS),
    (forged({"x": entry(dtype="I32")}), "'x' must be F32, F16 or BF16. Received: I32"),
    (forged({"x": entry(dtype="F8_E4M3", shape=[8])}), "Received: F8_E4M3"),
    (forged({"x": [1]}), NOT_SAFETENSORS),
    (forged({"x": entry()}), "model.shared.weight is missing"),
    (forged({}), NOT_SAFETENSORS),
    # Arrays that share bytes, unused bytes, and positions of impossible shapes.
    (extended(lambda one, _: {f"x{n}": one for n in range(1000)}), NOT_SAFETENSORS),
    (extended(lambda one, _: {"x": one}, 1 << 20), NOT_SAFETENSORS),
    *(
        (
            extended(
                lambda _, end, shape=shape, size=size: {
                    POSITIONS: entry(shape=shape, data_offsets=[end, end + size])
                },
                size,
            ),
            "must contain sinusoidal positions",
        )
        for shape, size in (([10**12, 0], 0), ([], 4))
    ),
]


@pytest.mark.parametrize(("change", "message"), HUGGINGFACE)
def test_huggingface_folder_is_refused(huggingface, change, message):
    change(huggingface)
    assert message in import_error(import_huggingface, huggingface)


def test_settings_of_300_mb_are_refused_before_reading(marian):
    path = marian / "model.npz"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            with archive.open(name, "w") as file:
                file.write(data)
                if name == "special:model.yml.npy":
                    for _ in range(300):
                        file.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        message = import_error(import_marian, marian)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()
    assert "special:model.yml must have at most 65,536 bytes" in message


def test_code_in_a_marian_folder_is_not_run(marian):
    mark, path = marian / "mark", marian / "model.npz"
    data = path.read_bytes()
    tag = f"x: !!python/object/apply:pathlib.Path.touch [{mark}]\n"
    (marian / "decoder.yml").write_text(DECODER + tag)
    assert "not valid YAML" in import_error(import_marian, marian)
    (marian / "decoder.yml").write_text(DECODER)
    yaml_settings(tag)(marian)
    assert "not valid YAML" in import_error(import_marian, marian)
    # A pickle in an object array.
    np.save(marian / "pickled", np.array([FileOnUnpickle(mark)], object))
    pickled = (marian / "pickled.npy").read_bytes()
    path.write_bytes(data)
    member("extra.npy", pickled)(marian)
    assert "Object arrays cannot be loaded" in import_error(import_marian, marian)
    assert not mark.exists()
    # Confirms that the check is effective: unpickling the data after the 128-byte npy
    # header does create the file.
    pickle.loads(pickled[128:])
    assert mark.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table[: len(table) // 2],
        # The first four bytes are the size of the trie, and its root comes next. This
        # root points beyond the end.
        lambda table: table[:4] + b"\xff\xff\xff\x7f" + table[8:],
        # The size exceeds the table.
        lambda table: b"\xff\xff\xff\xff" + table[4:],
    ],
)
def test_damaged_charsmap_is_refused(marian, huggingface, change):
    proto = sentencepiece_model_pb2.ModelProto.FromString(splitter())
    spec = proto.normalizer_spec
    spec.precompiled_charsmap = change(spec.precompiled_charsmap)
    for read, folder in ((import_marian, marian), (import_huggingface, huggingface)):
        (folder / "target.spm").write_bytes(proto.SerializeToString())
        assert "normalization table" in import_error(read, folder)


@pytest.mark.backends
def test_hostile_bin_files_are_refused(huggingface):
    import torch

    path, mark = huggingface / "pytorch_model.bin", huggingface / "mark"
    (huggingface / "model.safetensors").unlink()
    state = {
        name: torch.tensor(array)
        for name, array in huggingface_arrays(random_arrays()).items()
    }
    torch.save(state, path)
    expected = logits(random_arrays(), SOURCE, TARGET, "huggingface")
    found = model_logits(import_huggingface(huggingface).model)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    # One stored number stands for 2^40 numbers.
    large = torch.zeros(1).expand(1 << 20, 1 << 20)
    infinite = torch.full((len(PIECES) + 1, 8), float("inf"))
    for changes, message in (
        ({"model.shared.weight": large}, "more than 4 times the file's"),
        ({"model.shared.weight": infinite}, "not finite"),
        ({7: torch.zeros(1)}, "names of its arrays"),
        ({"x": FileOnUnpickle(mark)}, "rejected by PyTorch"),
    ):
        torch.save({**state, **changes}, path)
        assert message in import_error(import_huggingface, huggingface)
    path.write_bytes(b"\x80\x04junk")
    assert "rejected by PyTorch" in import_error(import_huggingface, huggingface)
    assert not mark.exists()
    torch.save(state, path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/99", bytes(10 << 20))
    error = import_error(import_huggingface, huggingface)
    assert "Arrays must not be compressed" in error
