"""Compares two workers on loopback with one process and with a cost model.

    python benchmarks/workers.py

Every process has one core and one thread per operation. The global batch is the same
for one worker and for two. Four measurements take turns: a step of one process with the
whole batch, a step with half of it, a step of two workers, and an all-reduce of as many
numbers as the model has weights. The cost model predicts the time of two workers as the
time of half a batch plus the time of the all-reduce. The script writes
benchmarks/results/workers.json and .md.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import socket
import statistics
import sys
import time

import interleaved
import machine
import report
from scaling import SMALL, TINY, VOCABULARY

MODELS = {"tiny": TINY, "small": SMALL}
LENGTH = 20
ROWS = {"tiny": (32, 128), "small": (64,)}
NAME = pathlib.Path(__file__).name


class Worker:
    """A worker process that runs training steps or all-reduces."""

    def __init__(self, model):
        import keras
        import tensorflow as tf

        import keras_transformer as kt
        from keras_transformer import training
        from keras_transformer.training.workers import Workers

        keras.utils.disable_interactive_logging()
        self.workers = Workers()
        self.strategy = self.workers.strategy
        keras.utils.set_random_seed(1)
        with self.strategy.scope():
            transformer = kt.Transformer(VOCABULARY, **MODELS[model], dropout=0.1)
            transformer.build({"source_ids": (None, None), "target_ids": (None, None)})
            self.model = training.TrainingModel(transformer, 0.1)
            self.model.compile(training.FusedAdam(1e-4), jit_compile=False)
            self.model.optimizer.build(self.model.trainable_variables)
        self.model.make_train_function()
        self.num_weights = transformer.count_params()
        self.batches = {}

        @tf.function
        def reduce(values):
            return self.strategy.run(
                lambda values: tf.distribute.get_replica_context().all_reduce(
                    "SUM", values + 1.0
                ),
                args=(values,),
            )

        self.reduce = reduce

    def step(self, rows):
        """Runs a training step over a global batch of `rows`."""
        if rows not in self.batches:
            self.batches[rows] = iter(
                self.workers.distribute(self._dataset(rows // self.workers.count))
            )
        logs = self.model.train_function(self.batches[rows])
        return float(logs["loss"])

    def all_reduce(self, rows):
        """Sums an array as large as the model's weights over the workers."""
        import tensorflow as tf

        return float(self.reduce(tf.zeros([self.num_weights]))[0])

    def _dataset(self, rows):
        import tensorflow as tf

        ids = tf.random.uniform((rows, LENGTH), 4, VOCABULARY, tf.int32, seed=1)
        batch = {"source_ids": ids, "target_ids": ids}, ids
        return tf.data.Dataset.from_tensors(batch).repeat()

    def turn(self, method, rows, calls):
        """Returns the mean seconds of a call."""
        function = getattr(self, method)
        start = time.perf_counter()
        for _ in range(calls):
            function(rows)
        seconds = (time.perf_counter() - start) / calls
        return {"seconds": seconds, "rate": 1 / seconds, "weights": self.num_weights}


class Group:
    """Workers that run each turn at the same time. The slowest one's metrics count."""

    def __init__(self, name, systems):
        self.name = name
        self.systems = systems
        self._pool = concurrent.futures.ThreadPoolExecutor(len(systems))

    def turn(self, **arguments):
        answers = [self._pool.submit(each.turn, **arguments) for each in self.systems]
        answers = [answer.result() for answer in answers]
        return max(answers, key=lambda answer: answer["seconds"])

    def close(self):
        for each in self.systems:
            self._pool.submit(each.close)
        self._pool.shutdown()


def start_workers(model, count, cores):
    """Starts `count` workers that train together on free ports."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()

    def config(index):
        cluster = {"worker": addresses} if count > 1 else {}
        return {"cluster": cluster, "task": {"type": "worker", "index": index}}

    return Group(
        f"{count}",
        [
            interleaved.System(
                f"worker {index} of {count}",
                NAME,
                "--serve",
                model,
                environment={
                    "TF_CONFIG": json.dumps(config(index)),
                    "BENCHMARK_CORE": str(cores[index]),
                    "OMP_NUM_THREADS": "1",
                    "TF_NUM_INTRAOP_THREADS": "1",
                    "TF_NUM_INTEROP_THREADS": "2",
                },
            )
            for index in range(count)
        ],
    )


def measure(model, rounds, calls, cores):
    """Returns the table's rows, one per batch size."""
    one, two = start_workers(model, 1, cores), start_workers(model, 2, cores)
    found = []
    for rows in ROWS[model]:
        kinds = {
            "one": (one, "step", rows),
            "half": (one, "step", rows // 2),
            "two": (two, "step", rows),
            "sum": (two, "all_reduce", rows),
        }
        seconds = {kind: [] for kind in kinds}
        for number in range(rounds + 1):
            for kind, (who, method, size) in kinds.items():
                metrics = who.turn(
                    method=method, rows=size, calls=calls if number else 1
                )
                if number:
                    seconds[kind].append(metrics["seconds"])
        ratios = {
            "speedup": [
                a / b for a, b in zip(seconds["one"], seconds["two"], strict=True)
            ],
            "predicted": [
                a / (b + c)
                for a, b, c in zip(
                    *map(seconds.get, ("one", "half", "sum")), strict=True
                )
            ],
        }
        found.append(
            {
                "model": model,
                "rows": rows,
                "tokens": rows * LENGTH,
                "mib": metrics["weights"] * 4 / 2**20,
                "ms": {
                    kind: 1000 * statistics.median(times)
                    for kind, times in seconds.items()
                },
                **{
                    name: interleaved.summary(values) for name, values in ratios.items()
                },
            }
        )
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    one.close()
    two.close()
    return found


def serve(model):
    # TensorFlow counts the cores when it is imported, so this must come first.
    os.sched_setaffinity(0, {int(os.environ["BENCHMARK_CORE"])})
    channel = interleaved.Channel()
    # Sent first, because `Worker` waits for the other worker, which is started later.
    channel.send()
    worker = Worker(model)
    while (arguments := channel.receive()) is not None:
        channel.send(**worker.turn(**arguments))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps per turn")
    parser.add_argument("--output", default=str(report.RESULTS))
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    cores = sorted(os.sched_getaffinity(0))[:2]
    rows = [
        row
        for model in MODELS
        for row in measure(model, arguments.rounds, arguments.steps, cores)
    ]
    result = {
        "machine": {**machine.description(), "threads": 1},
        "versions": report.versions(),
        "rows": rows,
    }
    report.write(arguments.output, "workers", result)


if __name__ == "__main__":
    main()
