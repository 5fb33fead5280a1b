"""Compares this package, PyTorch and KerasHub in training throughput and memory.

All systems train on the same batches:

    pip install ".[bench]"
    KERAS_TRANSFORMER_DATA=... python benchmarks/training.py tiny
    KERAS_TRANSFORMER_DATA=... python benchmarks/training.py base

The script writes benchmarks/results/training_SIZE.json and .md.
"""

import argparse
import sys
import tempfile

import interleaved
import machine
import report
import workload

from keras_transformer.runs.cost import training_flops

OURS = "keras_transformer"
# Variants of this package. "N parts" splits each batch into N parts, of which up to two
# are computed in parallel. The default is two parts. "bfloat16_matmul" computes matrix
# products in bfloat16.
OPTIONS = ("1 part", "4 parts", "8 parts", "16 parts", "bfloat16_matmul")
# Steps per turn. A turn takes about the same time for both sizes.
STEPS = {"tiny": 40, "base": 4}


def start_systems(size, folder, num_batches, without):
    """Starts the systems one after another. The last one, sgemm, is the reference."""
    kerashub = ("peers/train_kerashub.py", size, folder)
    commands = {
        OURS: ("peers/train_ours.py", size, folder),
        **{
            f"{OURS}, {option}": ("peers/train_ours.py", size, folder, option)
            for option in OPTIONS
        },
        "torch.nn.Transformer": ("peers/train_torch.py", size, folder),
        "KerasHub layers": (*kerashub, "plain", num_batches),
        "KerasHub layers, XLA": (*kerashub, "xla", num_batches),
        "sgemm": ("machine.py",),
    }
    systems = []
    for name, command in commands.items():
        if name not in without or name == "sgemm":
            print(f"starting {name}", file=sys.stderr)
            systems.append(interleaved.System(name, *command))
    return systems


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("size", choices=workload.SIZES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps per turn")
    parser.add_argument(
        "--without", nargs="*", default=[], metavar="NAME", help="systems to skip"
    )
    parser.add_argument("--output", default=str(report.RESULTS))
    parser.add_argument(
        "--name",
        type=report.result_name,
        help="result files, a name that begins with training (default: training_SIZE)",
    )
    arguments = parser.parse_args()
    steps = arguments.steps or STEPS[arguments.size]
    settings = workload.settings(arguments.size)
    with tempfile.TemporaryDirectory() as folder:
        lengths = workload.save_batches(folder, steps * (arguments.rounds + 1))

        def round_arguments(number):
            batches = lengths[number * steps : (number + 1) * steps]
            tokens = int(sum(target.sum() for _, target in batches))
            return {"first": number * steps, "steps": steps, "tokens": tokens}

        systems = start_systems(arguments.size, folder, len(lengths), arguments.without)
        interleaved.take_turns(systems, arguments.rounds, round_arguments)
        for each in systems:
            each.close()
    # FLOPs per token are averaged over all measured rounds, since their batches have
    # similar lengths. The first `steps` batches are the warm-up.
    flops = sum(
        training_flops(settings, workload.VOCABULARY, *batch)
        for batch in lengths[steps:]
    )
    tokens = sum(target.sum() for _, target in lengths[steps:])
    *systems, matmul = systems
    sgemm = interleaved.summary([turn["rate"] for turn in matmul.turns])
    rows = []
    for each in systems:
        rate = interleaved.summary([turn["rate"] for turn in each.turns])
        gflops = rate["median"] * flops / tokens / 1e9
        rows.append(
            {
                "name": each.name,
                "tokens_per_second": rate,
                "relative_rate": interleaved.ratios(each, systems[0]),
                "gflops": gflops,
                "utilization": gflops / sgemm["median"],
                "peak_mib": each.turns[-1]["peak_mib"],
                "losses": [turn["loss"] for turn in each.turns],
            }
        )
    result = {
        "machine": machine.description(),
        "versions": report.versions(),
        "settings": {
            **settings,
            "vocabulary": workload.VOCABULARY,
            "batch_tokens": workload.BATCH_TOKENS,
            "steps_per_turn": steps,
            "rounds": arguments.rounds,
        },
        "sgemm_gflops": sgemm,
        "systems": rows,
    }
    name = arguments.name or f"training_{arguments.size}"
    report.write(arguments.output, name, result)


if __name__ == "__main__":
    main()
