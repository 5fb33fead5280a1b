"""Compares this package on JAX with PyTorch on one GPU, in training and decoding.

    python benchmarks/gpu.py RESULT.json

Needs jax, torch, transformers and keras, but not TensorFlow. All rows are full, so that
all systems do the same work. A part that fails is reported, and the others go on.

`--run RUN` also trains the model of a run from the start, by the clock, until it has
`--bleu` on the validation text. Such a folder, with the encoded text, comes from
`keras-transformer train multi30k_en_de --output RUN --set training.steps=1` on any
machine with TensorFlow. Needs sentencepiece and sacrebleu.

With small numbers, the script also runs on a CPU:

    python benchmarks/gpu.py RESULT.json --device cpu --precision float32 \
        --sizes base --train 24 32 --decode 1 32 --steps 4
"""

import argparse
import json
import pathlib
import sys
import time

import interleaved

OURS, TORCH, TRANSFORMERS = "keras_transformer", "torch", "transformers"


def measure(part, systems, rounds, steps):
    """Lets systems take turns, and returns their rates and the ratios of the first."""
    started = time.perf_counter()
    interleaved.take_turns(systems, rounds, lambda number: {"steps": steps})
    found = {
        system.name: {
            "tokens per second": interleaved.summary([t["rate"] for t in system.turns]),
            **{name: system.turns[-1].get(name) for name in ("peak_gib", "device")},
            "seconds to start": round(system.started["seconds"], 1),
        }
        for system in systems
    }
    first, *others = systems
    for other in others:
        ratio = interleaved.ratios(first, other)
        found[first.name][f"ratio to {other.name}"] = ratio
    for system in systems:
        system.close()
    rates = {
        name: round(each["tokens per second"]["median"]) for name, each in found.items()
    }
    print(f"{part}: {rates}", file=sys.stderr, flush=True)
    return {"seconds": round(time.perf_counter() - started), **found}


def measure_run(options, environment):
    """Trains until `options.bleu`, and returns the scores with their times."""
    script = "peers/gpu_run.py", options.run
    system = interleaved.System("run", *script, environment=environment)
    names = "bleu", "minutes", "pairs"
    limits = {name: getattr(options, name) for name in names}
    found = system.turn(steps=10 * options.steps, **limits)
    system.close()
    print(f"run: {found['curve'][-1]}", file=sys.stderr, flush=True)
    return {"seconds to start": round(system.started["seconds"], 1), **found}


def parts(options):
    """Yields the name and the systems of each part, each `(name, its arguments)`."""
    rows, length = options.train
    for size in options.sizes:
        shape = options.precision, size, options.vocabulary, rows, length
        yield f"train {size}", [(OURS, *shape), (TORCH, *shape)]
    for rows in options.decode:
        shape = options.precision, options.sizes[0], options.vocabulary, rows, 32
        yield f"decode {rows}", [(OURS, *shape), (TRANSFORMERS, *shape)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=pathlib.Path)
    parser.add_argument("--sizes", nargs="+", default=["base", "big"])
    parser.add_argument(
        "--train", nargs=2, type=int, default=[784, 32], metavar=("ROWS", "LENGTH")
    )
    parser.add_argument(
        "--decode", nargs="*", type=int, default=[1, 32, 128], metavar="ROWS"
    )
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24, help="training steps per turn")
    parser.add_argument("--run", type=pathlib.Path, help="run folder to train")
    parser.add_argument("--bleu", type=float, default=38)
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--pairs", type=int, default=10_000, help="to validate")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument(
        "--precision", choices=["bfloat16", "float32"], default="bfloat16"
    )
    options = parser.parse_args()
    # Two processes share the memory of the GPU.
    environment = {
        "CUDA_VISIBLE_DEVICES": "0" if options.device == "gpu" else "",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "KERAS_BACKEND": "jax",
    }
    results = {}
    for part, commands in parts(options):
        kind = part.partition(" ")[0]
        try:
            systems = [
                interleaved.System(
                    *(command[0], "peers/gpu_system.py", kind, *command),
                    environment=environment,
                )
                for command in commands
            ]
            steps = options.steps if kind == "train" else 1
            results[part] = measure(part, systems, options.rounds, steps)
        except RuntimeError as error:
            results[part] = {"error": str(error)}
            print(f"{part}: {error}", file=sys.stderr)
        write(options.result, results)
    if options.run is not None:
        try:
            results["run"] = measure_run(options, environment)
        except RuntimeError as error:
            results["run"] = {"error": str(error)}
            print(f"run: {error}", file=sys.stderr)
        write(options.result, results)


def write(path, results):
    path.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
