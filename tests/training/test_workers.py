"""Two workers train the same model as one process, and stop together.

A worker is one process of a multi-worker TensorFlow cluster, described by the variable
`TF_CONFIG`. Worker 0 is the chief: only it prints and writes files. The marker `fault`
adds a test to the table in docs/results/reliability.md.
"""

import contextlib
import json
import re
import signal
import socket
import threading
import time

import numpy as np
import pytest
import worker_processes
from phrases_run import DATA_AND_MODEL
from training_samples import log_rows, steps_in
from waiting import wait_until

from keras_transformer.errors import WorkerLostError, WorkersError
from keras_transformer.pipelines import EncodedCorpus, batch_indices
from keras_transformer.recipes import load_recipe
from keras_transformer.runs.train import train
from keras_transformer.saving.load import load_model
from keras_transformer.signals import call_in_thread
from keras_transformer.training.workers import Workers, wait_for_workers

STEPS = 48
# With this budget, one batch of the run has a single row.
BATCH_TOKENS = 1011
# Seconds until a silent worker counts as lost.
TIMEOUT = 10
# Seconds after the timeout within which the other worker must report the lost worker
# and exit.
GRACE = 20
SETTINGS = [
    *DATA_AND_MODEL,
    f"training.batch_tokens={BATCH_TOKENS}",
    f"training.steps={STEPS}",
    "training.warmup_steps=30",
    "training.checkpoint_steps=5",
    "training.keep_checkpoints=2",
    "training.average_checkpoints=2",
    "training.validation_steps=12",
    "training.validation_bleu=false",
]


def start_workers(folder, dropout=0.0, only=None):
    """Starts two workers, or one of them, that train in the run folder `folder/run`."""
    folder.mkdir(exist_ok=True)
    arguments = ["train", "phrases", "--output", folder / "run"]
    for setting in (*SETTINGS, f"model.dropout={dropout}"):
        arguments += ["--set", setting]
    arguments += ["--worker-timeout", TIMEOUT]
    return worker_processes.Workers(arguments, folder, only=only)


def run_workers(folder, dropout=0.0):
    """Runs two workers until the training ends and returns their output."""
    with start_workers(folder, dropout) as both:
        assert both.codes() == [0, 0], both.text(0)[-3000:] + both.text(1)[-3000:]
        return both.text(0), both.text(1)


def weights(run):
    _, _, model = load_model(run / "model.keras")
    return [weight.numpy() for weight in model.weights]


def files(run):
    """Returns a run's file names, without the process ids and times in some of them."""
    return sorted(
        re.sub(r"tfevents.*", "tfevents", str(path.relative_to(run)))
        for path in run.rglob("*")
        if path.is_file()
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Function that returns a folder with a `run`, and the output of each worker."""
    runs = {}

    def uninterrupted(dropout):
        if dropout not in runs:
            folder = tmp_path_factory.mktemp("uninterrupted")
            runs[dropout] = folder, run_workers(folder, dropout)
        return runs[dropout]

    return uninterrupted


@pytest.mark.slow
@pytest.mark.fault(
    "F30", "two workers train like one process, even on a batch of one row"
)
def test_two_workers_match_one_process(uninterrupted, tmp_path, record_property):
    folder, (chief, other) = uninterrupted(0.0)
    recipe = load_recipe("phrases", [*SETTINGS, "model.dropout=0.0"])
    train(recipe, tmp_path / "run", progress=False)
    corpus = EncodedCorpus.load(tmp_path / "run" / "cache" / "train")
    rows = [
        len(batch_indices(corpus, BATCH_TOKENS, 1, step))
        for step in range(1, STEPS + 1)
    ]
    # The second worker gets no row of a batch of one row, and the workers get different
    # numbers of rows of an odd batch.
    assert min(rows) == 1
    assert any(count % 2 for count in rows if count > 1)

    # Two workers sum gradients in another order than one process does.
    pairs = zip(weights(folder / "run"), weights(tmp_path / "run"), strict=True)
    differences = [np.abs(found - expected).max() for found, expected in pairs]
    assert len(differences) > 10 and max(differences) < 2e-5
    record_property("happened", f"weights differ by at most {max(differences):.0e}")

    logs, one_logs = log_rows(folder / "run"), log_rows(tmp_path / "run")
    # Four validations and the scores of the final model.
    assert len(logs) == len(one_logs) == STEPS // 12 + 1
    for row, one_row in zip(logs, one_logs, strict=True):
        assert row == pytest.approx(one_row, rel=1e-4)
    # Only the chief prints and writes. It writes the same files as one process.
    assert files(folder / "run") == files(tmp_path / "run")
    assert f"steps: {STEPS}" in chief and "on 2 device(s)" in chief
    assert "steps:" not in other and "step " not in other


@pytest.mark.slow
@pytest.mark.fault(
    "F29",
    "the other worker names the lost one and exits with code 75; after a "
    "restart, training resumes exactly",
)
@pytest.mark.parametrize(
    ("victim", "number", "dropout"),
    [(1, signal.SIGKILL, 0.0), (0, signal.SIGKILL, 0.2), (1, signal.SIGSTOP, 0.2)],
    ids=["worker killed", "chief killed", "worker stopped"],
)
def test_training_resumes_after_a_lost_worker(
    uninterrupted, tmp_path, victim, number, dropout, record_property
):
    run, whole = tmp_path / "run", uninterrupted(dropout)[0] / "run"
    with start_workers(tmp_path, dropout) as both:
        both.wait_for_step(run, 5)
        start = time.monotonic()
        both.processes[victim].send_signal(number)
        code = both.processes[1 - victim].wait(TIMEOUT + GRACE)
        seconds = time.monotonic() - start
        text = both.text(1 - victim)
    assert code == 75, text  # the exit code of `WorkerLostError`
    names = f"worker {1 - victim}: worker {victim}"
    assert f"error: {names} ended or cannot be reached" in text
    assert "Traceback" not in text
    assert 5 <= steps_in(run / "checkpoints")[-1] < STEPS
    run_workers(tmp_path, dropout)
    for value, expected in zip(weights(run), weights(whole), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert log_rows(run) == log_rows(whole)
    record_property(
        "happened",
        f"ended after {seconds:.0f} s (timeout {TIMEOUT} s); bit-identical afterwards",
    )


@pytest.mark.slow
def test_sigterm_to_one_worker_stops_both(tmp_path):
    with start_workers(tmp_path) as both:
        both.wait_for_step(tmp_path / "run", 5)
        both.processes[1].send_signal(signal.SIGTERM)
        # 143 is 128 + SIGTERM.
        assert both.codes() == [143, 143], both.text(0) + both.text(1)
    assert steps_in(tmp_path / "run" / "checkpoints")[-1] < STEPS
    assert not (tmp_path / "run" / "model.keras").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("only", "number"), [(0, signal.SIGTERM), (1, signal.SIGINT)], ids=str
)
def test_waiting_worker_ends_on_a_signal(tmp_path, only, number):
    with start_workers(tmp_path, only=only) as one:
        wait_until(lambda: "waits for all" in one.text(0), "log")
        (process,) = one.processes
        process.send_signal(number)
        assert process.wait(20) == 128 + number
        assert "Traceback" not in one.text(0)


@pytest.mark.slow
def test_error_of_chief_stops_both_workers(tmp_path):
    """If the chief cannot use the run folder, the other worker does not wait."""
    (tmp_path / "run").mkdir()
    # A file in place of the checkpoint folder.
    (tmp_path / "run" / "checkpoints").write_text("")
    with start_workers(tmp_path) as both:
        assert both.codes() == [2, 2], both.text(0) + both.text(1)
        assert "checkpoints" in both.text(0)
        assert "error: worker 1: worker 0 failed. The log" in both.text(1)


def config(cluster, job="worker", index=0):
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


def test_workers_meet_and_report_missing_ones():
    """A worker that has met all others starts a server on its port, as TensorFlow does.

    Slower workers then connect to this server and still meet all others.
    """
    addresses = worker_processes.cluster(3)
    missing = {}
    with contextlib.ExitStack() as servers:

        def meet(index):
            missing[index] = wait_for_workers(addresses, index, 30.0)
            port = int(addresses[index].rpartition(":")[2])
            servers.enter_context(socket.create_server(("127.0.0.1", port)))

        threads = [threading.Thread(target=meet, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
            time.sleep(0.1)
        for thread in threads:
            thread.join()
    assert missing == {0: [], 1: [], 2: []}
    # The servers are closed now, so worker 1 is alone.
    assert wait_for_workers(addresses, 1, 0.5) == [0, 2]


def test_workers_are_reached_over_ipv6():
    """Host names have only IPv6 addresses in some Kubernetes clusters."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6")
    here, there = worker_processes.cluster(2)
    port = int(here.rpartition(":")[2])
    # This worker's own address is a host name. The other one starts last.
    addresses = [f"localhost:{port}", there]
    waiting = threading.Thread(target=wait_for_workers, args=(addresses, 0, 60.0))
    waiting.start()

    def is_reachable():
        with contextlib.suppress(OSError):
            socket.create_connection(("::1", port)).close()
            return True

    wait_until(is_reachable, "the worker")
    with socket.create_server(("127.0.0.1", int(there.rpartition(":")[2]))):
        waiting.join()


@pytest.mark.parametrize("job", ["worker", "chief"])
def test_port_in_use_is_reported(monkeypatch, job):
    here, there = worker_processes.cluster(2)
    cluster = {"worker": [here, there]}
    if job == "chief":  # The chief is worker 0 in any order.
        cluster = {"worker": [there], "chief": [here]}
    monkeypatch.setenv("TF_CONFIG", config(cluster, job))
    host, _, port = here.rpartition(":")
    message = rf"worker 0: cannot listen .*{port}: Address"
    with (
        socket.create_server((host, int(port))),
        pytest.raises(WorkerLostError, match=message),
    ):
        Workers(start_seconds=0.3)


def test_port_that_becomes_free_is_used():
    here, there = worker_processes.cluster(2)
    other = socket.create_server(("127.0.0.1", int(here.rpartition(":")[2])))
    threading.Timer(0.5, other.close).start()
    second = socket.create_server(("127.0.0.1", int(there.rpartition(":")[2])))
    with second:
        assert wait_for_workers([here, there], 0, 30.0) == []
    assert other.fileno() == -1


def test_signals_interrupt_waiting_for_workers():
    """Ctrl-C ends the wait for a function that runs in another thread.

    The test sends itself SIGALRM, handled by Python's handler for Ctrl-C.
    """
    with pytest.raises(KeyboardInterrupt):
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            call_in_thread(threading.Event().wait)
        finally:
            signal.signal(signal.SIGALRM, previous)
    assert call_in_thread(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        call_in_thread(lambda: 1 / 0)


TWO = {"worker": ["a:1", "b:1"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON"),
        (json.dumps({"cluster": TWO}), "must be JSON"),
        (config({"worker": ["a:1"], "ps": ["b:1"]}), "Received: ps"),
        (config({"workers": ["a:1", "b:1"]}), "Received: workers"),
        (config({"worker": ["a:1", "b:99999"]}), "no port in 'b:99999'"),
        (config({"worker": ["a:1", "b..c:1"]}), "must be JSON .*label empty"),
        (config(TWO, index=2), "Received: worker 2, with .* tasks {'worker': 2}"),
        # A label of a host name has up to 63 characters.
        (config({"worker": [f"{'a' * 63}:1", "b:1"]}, index=2), "Received: worker 2"),
        (
            config({"chief": ["a:1", "b:1"]}, "chief"),
            "at most one chief",
        ),
    ],
)
def test_workers_reject_invalid_tf_config(monkeypatch, text, message):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(WorkersError, match=message):
        Workers()


@pytest.mark.parametrize("text", ["", "{}", config({"worker": ["a:1"]})])
def test_single_worker_trains_alone(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    alone = Workers()
    assert (alone.index, alone.count, alone.is_chief) == (0, 1, True)
    assert alone.broadcast_from_chief(lambda: "mine") == "mine"
    assert alone.all_reduce_sum([1, 0]) == [1, 0]
