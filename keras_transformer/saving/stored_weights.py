"""HDF5 files of weights, as Keras writes them, that may be untrusted."""

import math

from keras_transformer.errors import ModelError
from keras_transformer.untrusted import quote

# Name of the file in a `.keras` file.
WEIGHTS = "model.weights.h5"


def is_bfloat16(array):
    """Returns whether an HDF5 array contains bfloat16, which HDF5 itself lacks."""
    return array.dtype == "V2" and array.attrs.get("dtype") == "bfloat16"


def check_finite(path, variables):
    """Rejects variables of Keras or TensorFlow that contain NaN or infinity."""
    import numpy as np

    for each in variables:
        if not np.all(np.isfinite(np.asarray(each, "float32"))):
            name = getattr(each, "path", each.name)
            raise ModelError(
                f"{path}: the weight {name} contains NaN or infinity. Use an earlier "
                "checkpoint, or train the model again"
            )


def count_stored_parameters(file, size, limits):
    """Counts the parameters in an HDF5 file, which must have plain arrays and no links.

    Returns:
        `(num_arrays, num_parameters)`: the number of arrays of weights, and the number
        of their elements. States of optimizers and random generators are not counted.
    """
    import h5py

    num_arrays = num_parameters = num_bytes = 0
    seen = set()
    with h5py.File(file, "r") as root:
        groups = [root]
        while groups:
            group = groups.pop()
            for name in group:
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    path = _quote_path(f"{group.name}/{name}")
                    raise ModelError(f"{WEIGHTS} has a soft or external link at {path}")
                each = group[name]
                address = h5py.h5o.get_info(each.id).addr
                if address in seen:
                    raise ModelError(
                        f"{WEIGHTS} contains {_quote_path(each.name)} twice"
                    )
                if len(seen) >= limits.max_objects:
                    raise ModelError(
                        f"{WEIGHTS} contains more than {limits.max_objects:,} objects"
                    )
                seen.add(address)
                if isinstance(each, h5py.Group):
                    groups.append(each)
                    continue
                _check_array(each)
                is_weight = _is_weight(each)
                num_arrays += is_weight
                num_parameters += math.prod(each.shape) * is_weight
                num_bytes += math.prod(each.shape) * each.dtype.itemsize
                if num_bytes > size:
                    raise ModelError(
                        f"{WEIGHTS} has {size:,} bytes, but its arrays need more"
                    )
    return num_arrays, num_parameters


def convert_weights(path, dtype):
    """Rewrites an HDF5 file with floats of another precision and less metadata.

    Layer names, time stamps and empty groups are omitted, since Keras does not read
    them. In HDF5's newest format, groups take a tenth of the space.
    """
    import h5py
    import ml_dtypes
    import numpy as np

    largest = np.finfo(dtype).max
    without_times = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    without_times.set_obj_track_times(False)
    temporary = path.with_name(f"{path.name}.tmp")
    with (
        h5py.File(path, "r") as source,
        h5py.File(temporary, "w", libver="latest", meta_block_size=1) as target,
    ):

        def group(name):
            """Returns the group `name` of the new file, created if necessary."""
            if name and name not in target:
                parent, _, leaf = name.rpartition("/")
                h5py.h5g.create(group(parent).id, leaf.encode(), gcpl=without_times)
            return target[name or "/"]

        def copy(name, item):
            if not isinstance(item, h5py.Dataset):
                return
            array = item[()]
            if is_bfloat16(item):
                array = array.view(ml_dtypes.bfloat16).astype("float32")
            if array.dtype.kind == "f":
                if not np.all(np.abs(array) <= largest):
                    raise ModelError(f"{name}: a weight exceeds the range of {dtype}")
                array = array.astype(dtype)
            parent, _, leaf = name.rpartition("/")
            group(parent).create_dataset(leaf, data=array)

        source.visititems(copy)
    temporary.replace(path)


def _is_weight(array):
    # Quantized weights are int8. Arrays of other integers are states of random
    # generators.
    is_weight = array.dtype.kind == "f" or array.dtype == "int8" or is_bfloat16(array)
    return is_weight and not array.name.startswith("/optimizer/")


def _quote_path(path):
    return quote(path.lstrip("/"))


def _check_array(array):
    """Checks that an HDF5 object is a plain array of numbers in the same file."""
    import h5py

    path = _quote_path(array.name)
    is_dataset = isinstance(array, h5py.Dataset)
    # An empty dataset (null dataspace) has the shape `None`.
    is_array = is_dataset and array.shape is not None
    if not is_array or not (array.dtype.kind in "fiu" or is_bfloat16(array)):
        raise ModelError(f"{WEIGHTS} contains {path}, which is not an array of numbers")
    if array.external or array.is_virtual:
        raise ModelError(f"{WEIGHTS} stores {path} in another file")
    if array.chunks or array.id.get_create_plist().get_nfilters():
        raise ModelError(f"{WEIGHTS} stores {path} compressed or chunked")
