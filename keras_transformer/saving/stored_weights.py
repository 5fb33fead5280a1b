"""HDF5 files of weights, as Keras writes them, that may be untrusted."""

from keras_transformer.errors import ModelError


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


def count_stored_parameters(path):
    """Returns the number of parameters in an HDF5 file that Keras wrote.

    Raises a `ModelError` if its arrays need more bytes than the file has. Links are not
    followed.
    """
    import h5py

    sizes, num_bytes = [], 0

    def visit(name, item):
        nonlocal num_bytes
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            num_bytes += item.size * item.dtype.itemsize
            if _is_weight(item):
                sizes.append(item.size)

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    if num_bytes > path.stat().st_size:
        raise ModelError(
            f"{path.name} has {path.stat().st_size:,} bytes, but its arrays need more"
        )
    return sum(sizes)


def convert_weights(path, dtype):
    """Rewrites an HDF5 file with floats of another precision and less metadata.

    Layer names and empty groups are omitted, since Keras does not read them. In HDF5's
    newest format, groups take a tenth of the space.
    """
    import h5py
    import ml_dtypes
    import numpy as np

    largest = np.finfo(dtype).max
    temporary = path.with_name(f"{path.name}.tmp")
    with (
        h5py.File(path, "r") as source,
        h5py.File(temporary, "w", libver="latest", meta_block_size=1) as target,
    ):

        def copy(name, item):
            if not isinstance(item, h5py.Dataset):
                return
            array = item[()]
            if is_bfloat16(item):
                array = array.view(ml_dtypes.bfloat16).astype("float32")
            if array.dtype.kind == "f":
                if not np.all(np.abs(array) <= largest):
                    raise ModelError(
                        f"{name}: a weight exceeds the range of {dtype}, "
                        f"{largest:,.0f}. Write the model in float32, the default"
                    )
                array = array.astype(dtype)
            target.create_dataset(name, data=array)

        source.visititems(copy)
    temporary.replace(path)


def _is_weight(array):
    # Quantized weights are int8. Arrays of other integers are states of random
    # generators.
    is_weight = array.dtype.kind == "f" or array.dtype == "int8" or is_bfloat16(array)
    return is_weight and not array.name.startswith("/optimizer/")
