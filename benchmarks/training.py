"""Training throughput and memory beside peers, on the same batches, in turns.

    pip install ".[bench]"
    KERAS_TRANSFORMER_DATA=... python benchmarks/training.py tiny
    KERAS_TRANSFORMER_DATA=... python benchmarks/training.py base

writes benchmarks/results/training_SIZE.json and .md, or those of another `--name`.
"""

import argparse
import sys
import tempfile

import machine
import report
import turns
import workload

from keras_transformer.experiments.cost import training_flops

OURS = "keras_transformer"
# All threads on one part of the batch; so many parts, two side by side at a time;
# products in bfloat16. Without an option: two parts side by side.
OPTIONS = ("1 part", "4 parts", "8 parts", "16 parts", "auto_bfloat16")
# Steps of a turn, chosen so that one takes about as long in both sizes.
STEPS = {"tiny": 40, "base": 4}


def contestants(size, folder, without):
    """Started one after the other; each is ready when the next begins."""
    table = {
        OURS: ("peers/train_ours.py", size, folder),
        **{
            f"{OURS}, {option}": ("peers/train_ours.py", size, folder, option)
            for option in OPTIONS
        },
        "torch.nn.Transformer": ("peers/train_torch.py", size, folder),
        "KerasHub layers": ("peers/train_kerashub.py", size, folder, "plain"),
        "KerasHub layers, XLA": ("peers/train_kerashub.py", size, folder, "xla"),
        "sgemm": ("machine.py",),
    }
    found = []
    for name, command in table.items():
        if name not in without:
            print(f"starting {name}", file=sys.stderr)
            found.append(turns.Contestant(name, *command))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("size", choices=workload.SIZES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of a turn")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--output", default=str(report.RESULTS))
    parser.add_argument("--name", help="of the result's files; else training_SIZE")
    arguments = parser.parse_args()
    steps = arguments.steps or STEPS[arguments.size]
    settings = workload.settings(arguments.size)
    with tempfile.TemporaryDirectory() as folder:
        lengths = workload.save_batches(folder, steps * (arguments.rounds + 1))

        def of_round(number):
            batches = lengths[number * steps : (number + 1) * steps]
            tokens = int(sum(target.sum() for _, target in batches))
            return {"first": number * steps, "steps": steps, "tokens": tokens}

        found = contestants(arguments.size, folder, arguments.without)
        turns.take_turns(found, arguments.rounds, of_round)
        for each in found:
            each.close()
    # One figure for all rounds: they hold the same kind of batches.
    flops = sum(
        training_flops(settings, workload.VOCABULARY, *batch)
        for batch in lengths[steps:]
    )
    tokens = sum(target.sum() for _, target in lengths[steps:])
    sgemm = turns.summary([turn["rate"] for turn in found[-1].turns])
    rows = []
    for each in found[:-1]:
        rate = turns.summary([turn["rate"] for turn in each.turns])
        gflops = rate["median"] * flops / tokens / 1e9
        rows.append(
            {
                "name": each.name,
                "tokens_per_second": rate,
                "against_ours": turns.ratios(each, found[0]),
                "gflops": gflops,
                "utilisation": gflops / sgemm["median"],
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
            "steps_a_turn": steps,
            "rounds": arguments.rounds,
        },
        "sgemm_gflops": sgemm,
        "contestants": rows,
    }
    table = report.table(
        ["what", "target tokens/s (lowest-highest)", "ours is", "of sgemm", "peak MiB"],
        [
            [
                row["name"],
                report.spread(row["tokens_per_second"]),
                f"{1 / row['against_ours']['median']:.2f} x",
                f"{row['utilisation']:.0%}",
                f"{row['peak_mib']:,.0f}",
            ]
            for row in rows
        ],
    )
    name = arguments.name or f"training_{arguments.size}"
    report.write(arguments.output, name, result, table)


if __name__ == "__main__":
    main()
