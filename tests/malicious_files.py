"""Altered `.keras` files, made from a valid one, that loading must refuse.

A `.keras` file is a ZIP archive of config.json (settings), model.weights.h5 (arrays in
HDF5), and metadata.json.
"""

import contextlib
import copy
import io
import json
import warnings
import zipfile

import h5py
import numpy as np

CONFIG = "config.json"
WEIGHTS = "model.weights.h5"


def members(path):
    """Returns {name: content} of an archive's members."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_archive(path, content, compression=zipfile.ZIP_STORED):
    """Writes a ZIP archive of (name, bytes) pairs without checking the names."""
    with zipfile.ZipFile(path, "w", compression) as archive, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Duplicate name")
        for name, data in content:
            archive.writestr(zipfile.ZipInfo(name), data, compression)


def with_config(path, target, change):
    """Copies the file `path` to `target`, with settings altered by a function.

    The function `change(outer, inner)` gets the content of config.json and its entry
    "config", and alters them in place.
    """
    content = members(path)
    outer = json.loads(content[CONFIG])
    change(outer, outer["config"])
    content[CONFIG] = json.dumps(outer).encode()
    write_archive(target, content.items())


def with_weights(path, target, change):
    """Copies the file `path` to `target`, with weights altered by `change(file)`."""
    content = members(path)
    memory = io.BytesIO(content[WEIGHTS])
    with h5py.File(memory, "r+") as file:
        change(file)
    content[WEIGHTS] = memory.getvalue()
    write_archive(target, content.items())


def write_lambda_model(path, marker):
    """Writes a model with a layer whose code creates the file `marker`."""
    import keras

    # Keras stores the function's bytecode, so the path must be a constant in it.
    source = f"lambda x: (open({str(marker)!r}, 'w').close(), x)[1]"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Lambda(eval(source))])
    marker.unlink()  # created while the model was built
    model.save(path)


def object_of(module, name):
    """Returns the JSON with which Keras would import `name` from `module`."""
    return {
        "class_name": "function",
        "config": name,
        "module": module,
        "registered_name": name,
    }


def set_class(**changes):
    """Returns a function for `with_config` that sets entries outside of "config"."""
    return lambda outer, inner: outer.update(changes)


def set_setting(name, value):
    """Returns a function for `with_config` that changes one setting."""
    return lambda outer, inner: inner.update({name: value})


# Stored form of a `keras.layers.Lambda` function: bytecode in base64.
LAMBDA = {
    "class_name": "__lambda__",
    "config": {"value": ["4wEAAAA=", None, None]},
}
# Functions for `with_config` whose results must be refused, and text of each error.
SETTINGS = {
    "another class": (
        set_class(module="os", class_name="system", registered_name="os>system"),
        "class_name",
    ),
    "a class of this package": (
        set_class(class_name="Encoder", registered_name="keras_transformer>Encoder"),
        "'Encoder'",
    ),
    "a registered name alone": (set_class(registered_name="a>b"), "a>b"),
    "another module": (set_class(module="subprocess"), "module"),
    "an extra entry": (set_class(shared_object_id=1), "shared_object_id"),
    "a function of os": (set_setting("activation", object_of("os", "system")), "os"),
    "eval": (set_setting("activation", object_of("builtins", "eval")), "eval"),
    "a lambda": (set_setting("activation", LAMBDA), "__lambda__"),
    "a lambda as a name": (set_setting("name", LAMBDA), "__lambda__"),
    "a layer as a policy": (
        set_setting("dtype", {"class_name": "Lambda", "config": {}}),
        "Lambda",
    ),
    "a policy with an extra entry": (
        set_setting(
            "dtype",
            {
                "module": "keras",
                "class_name": "DTypePolicy",
                "config": {"name": "float32", "other": LAMBDA},
                "registered_name": None,
            },
        ),
        "dtype",
    ),
    "an unknown setting": (set_setting("code", "1"), "'config.code'"),
    "a preset": (set_setting("preset", "base"), "'config.preset'"),
    "a huge size": (set_setting("max_length", 10**400), "is too large"),
    "a window beyond int32": (
        set_setting("attention_window", 2**31),
        "attention_window",
    ),
    "an id beyond int32": (set_setting("pad_id", 2**31), "pad_id"),
    "a long name": (set_setting("name", "x" * 101), "at most 100 characters"),
    "invalid input shapes": (
        set_class(build_config={"input_shape": [LAMBDA]}),
        "input_shape",
    ),
    "no input shapes": (set_class(build_config=None), "build_config"),
    "a size below 1": (set_setting("num_layers", 0), "num_layers"),
    "a size that is true": (set_setting("num_heads", True), "num_heads"),
    "a size of text": (set_setting("d_model", "24"), "d_model"),
    "more layers than weights": (set_setting("num_layers", 10**6), "arrays of weights"),
    "more layers than arrays": (
        lambda outer, inner: inner.update(
            {"num_layers": 400, "d_model": 2, "d_ff": 1, "num_heads": 1}
            | {"key_dim": 1, "value_dim": 1, "vocabulary_size": 4}
        ),
        "arrays of weights",
    ),
    "more words than weights": (set_setting("vocabulary_size", 2**30), "parameters"),
    "wider than weights": (set_setting("d_ff", 2**30), "parameters"),
    "settings that are a list": (set_class(config=[1]), "'config' is wrong"),
}


def _replace(name, make):
    def change(file):
        del file[name]
        make(file, name)

    return change


def _external_storage(file, name):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_external(b"/etc/passwd", 0, 300 * 24 * 4)
    space = h5py.h5s.create_simple((300, 24))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.IEEE_F32LE, space, plist)


def _virtual(file, name):
    layout = h5py.VirtualLayout((300, 24), "float32")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (300, 24))
    file.create_virtual_dataset(name, layout)


def _link(link):
    def make(file, name):
        file[name] = link

    return make


def _dataset(**options):
    return lambda file, name: file.create_dataset(name, **options)


def _never_written(file, name):
    # The file contains no data for this array, and reading it gives 4 TB of zeros.
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
    space = h5py.h5s.create_simple((10**12,))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.IEEE_F32LE, space, plist)


def _cycle(file, name):
    file[name] = file["/"]


# The HDF5 path of the embeddings, `[300, 24]` in the valid file.
EMBEDDINGS = "layers/token_embedding/vars/0"
# Functions of (HDF5 file, path) that create an invalid array, and text of each error.
ARRAYS = {
    "a link to a file": (
        _link(h5py.ExternalLink("/etc/passwd", "/x")),
        "external link",
    ),
    "a soft link": (_link(h5py.SoftLink("/decoder")), "a soft or external link"),
    "bytes of a file": (_external_storage, "another file"),
    "an array of other files": (_virtual, "another file"),
    "compressed zeros": (
        _dataset(shape=(10**6, 10**3), dtype="f4", chunks=True, compression="gzip"),
        "compressed",
    ),
    "chunks": (
        _dataset(data=np.zeros((300, 24), "f4"), chunks=(3, 24)),
        f"stores '{EMBEDDINGS}' compressed or chunked",
    ),
    "an array that was never written": (_never_written, "its arrays need more"),
    "a group in itself": (_cycle, "twice"),
    "text": (_dataset(data="rm -rf"), "not an array of numbers"),
    "a null dataspace": (_dataset(data=h5py.Empty("f4")), "not an array of numbers"),
    "references": (
        _dataset(shape=(2,), dtype=h5py.ref_dtype),
        "not an array of numbers",
    ),
}
# Functions for `with_weights` whose results must be refused, and text of each error.
WEIGHT_FILES = {
    name: (_replace(EMBEDDINGS, make), reason)
    for name, (make, reason) in ARRAYS.items()
}


def _extra(name, data=b"cos\nsystem\n(S'true'\ntR."):  # a pickle that runs `true`
    return lambda content: [*content.items(), (name, data)]


def _replaced(content, name, data):
    return [*{**content, name: data}.items()]


# Functions from a valid archive's {name: content} to the (name, content) pairs of an
# archive that must be refused, and text of each error.
ARCHIVES = {
    "a path to a parent folder": (_extra("../../evil.txt"), "not part of a model"),
    "an absolute path": (_extra("/tmp/evil.txt"), "not part of a model"),
    "a Windows path": (_extra("..\\..\\evil.txt"), "not part of a model"),
    "a pickle": (_extra("model.pkl"), "model.pkl"),
    "arrays with pickles": (_extra("model.weights.npz"), "model.weights.npz"),
    "assets": (_extra("assets/x"), "assets/x"),
    "settings twice": (_extra(CONFIG, b"{}"), "2 times"),
    "no settings": (
        lambda content: [(n, d) for n, d in content.items() if n != CONFIG],
        "is missing",
    ),
    "settings of 2 MB": (
        lambda content: _replaced(content, CONFIG, b" " * (1 << 21)),
        "at most 1,048,576 are allowed",
    ),
    "settings nested too deeply": (
        lambda content: _replaced(content, CONFIG, b"[" * 100_000),
        "nested too deeply",
    ),
    "settings that are a list": (
        lambda content: _replaced(content, CONFIG, b"[]"),
        "the content is wrong",
    ),
    "settings with an infinite number": (
        lambda content: _replaced(content, CONFIG, b'{"class_name": 1e999}'),
        "not finite",
    ),
    "settings that are bytes": (
        lambda content: _replaced(content, CONFIG, b"\xff\x00"),
        "cannot be read",
    ),
}


def write_zip_bomb(path, target, num_bytes=1 << 26):
    """Copies a file with `num_bytes` zeros as weights, compressed about 1000:1."""
    content = members(path)
    content.pop(WEIGHTS)
    write_archive(target, content.items())
    with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(WEIGHTS, bytes(num_bytes))


def write_overlapping_archive(path, target):
    """Copies a file so that metadata.json refers to the same bytes as the weights."""
    content = members(path)
    write_archive(target, [*content.items()])
    with contextlib.closing(zipfile.ZipFile(target, "a")) as archive:
        twin = copy.copy(archive.getinfo(WEIGHTS))
        twin.filename = "metadata.json"
        archive.filelist = [
            each for each in archive.filelist if each.filename != "metadata.json"
        ]
        archive.filelist.append(twin)
        archive._didModify = True
