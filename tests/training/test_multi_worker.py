"""Training with Keras's `fit` on several workers, compared with one process."""

import json
import os
import pathlib

import numpy as np
import prepared
import pytest
import tensorflow as tf
from training_samples import weights_of
from worker_processes import LIMIT, cluster
from workers_run import fit

from keras_transformer.pipelines import encode_corpus, train_tokenizer, training_dataset
from keras_transformer.training.workers import Workers

SCRIPT = pathlib.Path(__file__).resolve().parent / "workers_run.py"


def test_two_workers_match_one_process_for_plain_model(tmp_path):
    addresses = cluster(2)
    workers = {"chief": addresses[:1], "worker": addresses[1:]}
    processes = {}
    for job in workers:
        task = {"cluster": workers, "task": {"type": job, "index": 0}}
        processes[job] = prepared.start(
            prepared.script(SCRIPT),
            tmp_path,
            env={"TF_CONFIG": json.dumps(task)},
            stdout=os.devnull,
            stderr=tmp_path / job,
        )
    for job, process in processes.items():
        process.join(LIMIT)
        assert process.exitcode == 0, (tmp_path / job).read_text()[-4000:]

    model, metrics = fit(Workers())
    expected = weights_of(model)
    for index in range(2):
        with np.load(tmp_path / f"{index}.npz") as stored:
            for number, value in enumerate(expected):
                np.testing.assert_allclose(
                    stored[f"arr_{number}"], value, rtol=1e-3, atol=2e-5
                )
            for name in ("perplexity", "accuracy"):
                assert float(stored[name]) == pytest.approx(metrics[name], 1e-4)


def test_distribute_splits_rows_among_replicas(tmp_path):
    """Each row of a batch goes to exactly one of two workers with two replicas each."""

    class Strategy:
        num_replicas_in_sync = 4

        def distribute_datasets_from_function(self, function):
            return function(None)

    texts = [f"{number} und {number + 1}" for number in range(41)]
    tokenizer = train_tokenizer("bpe", texts, 280)
    corpus = encode_corpus(
        [(text, text) for text in texts], tokenizer, tokenizer, tmp_path / "ids"
    )

    def batches(**options):
        dataset = training_dataset(corpus, 70, **options)
        return [labels.numpy() for _, labels in dataset.take(6)]

    parts = []
    for index in range(2):
        workers = Workers()
        workers.index, workers.count, workers.strategy = index, 2, Strategy()
        dataset = training_dataset(corpus, 70, num_replicas=4, shard=(index, 2))
        distributed = workers.distribute(dataset)
        assert int(distributed.cardinality()) == tf.data.INFINITE_CARDINALITY
        taken = [labels.numpy() for _, labels in distributed.take(12)]
        parts.append([taken[step : step + 2] for step in range(0, 12, 2)])
    for step, labels in enumerate(batches()):
        shards = [part for worker in parts for part in worker[step]]
        assert len({shard.shape for shard in shards}) == 1
        rows = np.concatenate(shards)
        # Rows of padding fill the batch, so that all four replicas get the same number.
        assert len(rows) % 4 == 0
        assert sorted(map(tuple, rows[rows.any(axis=1)])) == sorted(map(tuple, labels))
