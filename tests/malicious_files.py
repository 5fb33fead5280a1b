"""Altered `.keras` files, made from a valid one, that loading must refuse.

A `.keras` file is a ZIP archive of config.json (settings), model.weights.h5 (arrays in
HDF5), and metadata.json. The tables contain, by name, a change and text of the error.
"""

import contextlib
import copy
import io
import json
import warnings
import zipfile

import h5py

CONFIG = "config.json"
WEIGHTS = "model.weights.h5"
# The HDF5 path of the embeddings, `[300, 24]` in the valid file.
EMBEDDINGS = "layers/token_embedding/vars/0"


def members(path):
    """Returns {name: content} of an archive's members."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_archive(path, content):
    """Writes a ZIP archive of (name, bytes) pairs without checking the names."""
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Duplicate name")
        for name, data in content:
            archive.writestr(zipfile.ZipInfo(name), data)


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
    names = {"class_name": "function", "config": name, "registered_name": name}
    return {**names, "module": module}


def outer(**changes):
    """Returns a function that sets entries of config.json outside of "config"."""
    return lambda config: config.update(changes)


def inner(**settings):
    """Returns a function that changes settings in config.json."""
    return lambda config: config["config"].update(settings)


# Stored form of a `keras.layers.Lambda` function: bytecode in base64.
LAMBDA = {"class_name": "__lambda__", "config": {"value": ["4wEAAAA=", None, None]}}
POLICY = {
    **{"module": "keras", "class_name": "DTypePolicy", "registered_name": None},
    "config": {"name": "float32", "other": LAMBDA},
}
# Functions that change the content of config.json in place.
SETTINGS = {
    "another class": (outer(module="os", class_name="system"), "class_name"),
    "a class of this package": (outer(class_name="Encoder"), "'Encoder'"),
    "a registered name alone": (outer(registered_name="a>b"), "a>b"),
    "another module": (outer(module="subprocess"), "module"),
    "an extra entry": (outer(shared_object_id=1), "shared_object_id"),
    "settings that are a list": (outer(config=[1]), "'config' is wrong"),
    "a function of os": (inner(activation=object_of("os", "system")), "'system'"),
    "eval": (inner(activation=object_of("builtins", "eval")), "eval"),
    "a lambda": (inner(activation=LAMBDA), "__lambda__"),
    "a lambda as a name": (inner(name=LAMBDA), "__lambda__"),
    "a layer as a policy": (inner(dtype={"class_name": "Lambda"}), "Lambda"),
    "a policy with an extra entry": (inner(dtype=POLICY), "dtype"),
    "an unknown setting": (inner(code="1"), "'config.code'"),
    "a size": (inner(size="base"), "'config.size'"),
    "a huge size": (inner(max_length=10**400), "is too large"),
    "a window beyond int32": (inner(attention_window=2**31), "attention_window"),
    "a long name": (inner(name="x" * 101), "at most 100 characters"),
    "a size below 1": (inner(num_layers=0), "num_layers"),
    "a size that is true": (inner(num_heads=True), "num_heads"),
    "a size of text": (inner(d_model="24"), "d_model"),
    "more layers than weights": (inner(num_layers=10**6), "parameters, but"),
    "more words than weights": (inner(vocabulary_size=2**30), "parameters, but"),
    "wider than weights": (inner(d_ff=2**30), "parameters, but"),
}


def _external_storage(file, name):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_external(b"/etc/passwd", 0, 300 * 24 * 4)
    space = h5py.h5s.create_simple((300, 24))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.IEEE_F32LE, space, plist)


def _virtual(file, name):
    layout = h5py.VirtualLayout((300, 24), "float32")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (300, 24))
    file.create_virtual_dataset(name, layout)


def _never_written(file, name):
    # The file contains no data for this array, and reading it gives 4 TB of zeros.
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
    space = h5py.h5s.create_simple((10**12,))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.IEEE_F32LE, space, plist)


def _item(make):
    return lambda file, name: file.__setitem__(name, make(file))


def _dataset(**options):
    return lambda file, name: file.create_dataset(name, **options)


# Functions that replace an array of an HDF5 file. Keras itself refuses the first two.
ARRAYS = {
    "bytes of a file": (_external_storage, "cannot be loaded"),
    "an array of other files": (_virtual, "cannot be loaded"),
    "a link to a file": (
        _item(lambda _: h5py.ExternalLink("/etc/passwd", "/x")),
        "parameters, but the file",
    ),
    "a soft link": (_item(lambda _: h5py.SoftLink("/decoder")), "parameters, but"),
    "a group in itself": (_item(lambda file: file["/"]), "parameters, but"),
    "text": (_dataset(data="rm -rf"), "parameters, but"),
    "a null dataspace": (_dataset(data=h5py.Empty("f4")), "parameters, but"),
    "references": (_dataset(shape=(2,), dtype=h5py.ref_dtype), "parameters, but"),
    "compressed zeros": (
        _dataset(shape=(10**6, 10**3), dtype="f4", chunks=True, compression="gzip"),
        "its arrays need more",
    ),
    "an array that was never written": (_never_written, "its arrays need more"),
}


def replace_array(file, make):
    """Replaces the embeddings of an open HDF5 file."""
    del file[EMBEDDINGS]
    make(file, EMBEDDINGS)


def _config(change):
    def changed(content):
        config = json.loads(content[CONFIG])
        change(config)
        return {**content, CONFIG: json.dumps(config).encode()}.items()

    return changed


def _weights(make):
    def changed(content):
        memory = io.BytesIO(content[WEIGHTS])
        with h5py.File(memory, "r+") as file:
            replace_array(file, make)
        return {**content, WEIGHTS: memory.getvalue()}.items()

    return changed


def _extra(name, data=b"cos\nsystem\n(S'true'\ntR."):  # a pickle that runs `true`
    return lambda content: [*content.items(), (name, data)]


def _settings(data):
    return lambda content: {**content, CONFIG: data}.items()


# Functions from a valid archive's {name: content} to (name, content) pairs.
ARCHIVES = {
    **{name: (_config(change), text) for name, (change, text) in SETTINGS.items()},
    **{name: (_weights(make), text) for name, (make, text) in ARRAYS.items()},
    "a path to a parent folder": (_extra("../../evil.txt"), "not part of a model"),
    "an absolute path": (_extra("/tmp/evil.txt"), "not part of a model"),
    "a pickle": (_extra("model.pkl"), "model.pkl"),
    "assets": (_extra("assets/x"), "assets/x"),
    "settings twice": (_extra(CONFIG, b"{}"), "contains a file twice"),
    "no settings": (
        lambda content: [each for each in content.items() if each[0] != CONFIG],
        "config.json is missing",
    ),
    "settings of 2 MB": (_settings(b" " * (1 << 21)), "at most 1,048,576 bytes"),
    "settings nested deeply": (_settings(b"[" * 100_000), "nested too deeply"),
    "a list": (_settings(b"[]"), "the content is wrong"),
    "an infinite number": (_settings(b'{"class_name": 1e999}'), "not finite"),
    "settings that are bytes": (_settings(b"\xff\x00"), "cannot be read"),
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
