"""The server with a real SavedModel, in this process and as the command `serve`."""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
import tensorflow as tf
from fake_model import ask, predict, served
from malicious_graphs import write_unsafe_export
from waiting import wait_until

from keras_transformer.errors import ModelError
from keras_transformer.export.load import LIMITS
from keras_transformer.export.searches import JIT_MAX_LENGTH, JIT_STEP
from keras_transformer.serving import Limits, ServedModel

pytestmark = pytest.mark.usefixtures("exports_load_once")
TEXTS = ["der Hund läuft", "", "ein Hund und noch ein Hund", "  \t ", "läuft 😀 der"]


@pytest.fixture(scope="module")
def model(tiny_export):
    return ServedModel(tiny_export.parent)


@pytest.fixture(scope="module")
def port(model):
    with served(model, Limits()) as port:
        yield port


def test_server_matches_the_translator(port, tiny_translator):
    body = {"inputs": TEXTS}
    status, answer = predict(port, body, "tiny")
    expected = tiny_translator.n_best(TEXTS, 1)
    assert status == 200
    texts = [each.text for (each,) in expected]
    assert answer["outputs"]["translations"] == texts
    scores = [each.score for (each,) in expected]
    assert answer["outputs"]["scores"] == pytest.approx(scores, rel=1e-4)

    def alone(text):
        found = predict(port, {"instances": [text]}, "tiny")[1]
        return found["predictions"][0]["translations"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert [*pool.map(alone, TEXTS * 4)] == texts * 4


def test_served_model_describes_its_signatures(model):
    assert model.inputs["serving_default"] == {"inputs": "string"}
    assert model.inputs["encode"] == {"source_ids": "int32"}
    merged = {name for name in model.inputs if model.can_merge(name)}
    assert merged == {"serving_default", "translate_n_best", "score"}
    signatures = model.metadata["signature_def"]["signature_def"]
    taken = signatures["serving_default"]["inputs"]["inputs"]
    assert taken["dtype"] == "DT_STRING"
    assert taken["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}]
    assert signatures["score"]["method_name"] == "tensorflow/serving/predict"


def test_server_runs_every_signature(port):
    pair = {"inputs": ["ein Hund"], "targets": ["läuft"]}
    ids = {"source_ids": [[7, 9, 3]]}
    for name, inputs, outputs in (
        ("translate_n_best", {"inputs": ["ein Hund"]}, 5),
        ("score", pair, 3),
        ("attend", pair, 4),
        ("translate_ids", ids, 2),
    ):
        body = {"signature_name": name, "inputs": inputs}
        status, answer = predict(port, body, "tiny")
        # The untrained model repeats itself.
        found = {*answer["outputs"]} - {"warnings"}
        assert (status, len(found)) == (200, outputs), answer
    status, answer = predict(port, {"signature_name": "encode", "inputs": ids}, "tiny")
    # One vector of width 24 per id.
    assert (len(answer["outputs"][0]), len(answer["outputs"][0][0])) == (3, 24)


@pytest.mark.parametrize("row", [[7, 9, 3], [7] * 3_000 + [3]])
def test_estimated_values_are_exact_for_encode(model, row):
    columns = {"source_ids": [row, row]}
    (output,) = model.run("encode", columns).values()
    assert model.estimate_values("encode", columns) == output.size


@pytest.mark.parametrize("text", ["der Hund läuft", "", "Hund " * 9_000])
def test_estimated_values_are_a_lower_bound_for_attend(model, text):
    """Subwords are at least as many as words, and long texts are truncated."""
    columns = {"inputs": [text, "läuft"], "targets": ["", text]}
    outputs = model.run("attend", columns).values()
    size = sum(output.size for output in outputs)
    assert 0 < model.estimate_values("attend", columns) <= size
    # Each text has 3 words, so that 3 x 3 weights or more are returned for each pair.
    columns = {"inputs": ["ein Hund läuft"] * 5, "targets": ["und noch ein"] * 5}
    assert model.estimate_values("attend", columns) >= 5 * 9


def test_warm_up_requests_cover_every_signature(model):
    requests = dict(model.warm_up_requests())
    assert set(requests) == set(model.inputs)
    for signature, columns in requests.items():
        assert model.run(signature, columns)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_warm_up_requests_cover_every_compiled_length(tmp_path, jit_compile):
    @tf.function(jit_compile=jit_compile)
    def search(source_ids):
        return source_ids + 1

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, "source_ids")])
    def translate_ids(source_ids):
        return {"target_ids": search(source_ids)}

    module = tf.Module()
    module.translate_ids = translate_ids
    tf.saved_model.save(module, tmp_path / "1", {"serving_default": translate_ids})
    (tmp_path / "1" / LIMITS).parent.mkdir()
    limits = {"max_batch_size": 9, "max_source_length": 99, "end_id": 3}
    (tmp_path / "1" / LIMITS).write_text(json.dumps(limits))
    model = ServedModel(tmp_path, allow_unsafe=True)
    requests = [columns["source_ids"] for _, columns in model.warm_up_requests()]
    lengths = {len(rows[0]) for rows in requests if len(rows) == 1}
    compiled = {*range(JIT_STEP, JIT_MAX_LENGTH + 1, JIT_STEP)}
    assert lengths & compiled == (compiled if jit_compile else set())


def test_server_reports_assertions_in_one_line(port):
    body = {"signature_name": "encode", "inputs": {"source_ids": [[300]]}}
    message = "source_ids must be from 0 to 299"
    assert predict(port, body, "tiny") == (400, {"error": message})


def test_served_model_finds_its_version_and_name(tiny_export, tmp_path, monkeypatch):
    for version in ("2", "10"):
        shutil.copytree(tiny_export, tmp_path / "many" / version)
    (tmp_path / "current").symlink_to("many")
    for folder, inside, expected in (
        (tmp_path / "many", ".", ("many", 10)),
        (tmp_path / "many" / "2", ".", ("many", 2)),
        # A symbolic link gives its own name.
        (tmp_path / "current", ".", ("current", 10)),
        (pathlib.Path("."), "many", ("many", 10)),
        (pathlib.Path("."), "many/2", ("many", 2)),
    ):
        monkeypatch.chdir(tmp_path / inside)
        model = ServedModel(folder)
        assert (model.name, model.version) == expected
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="empty: not a SavedModel"):
        ServedModel(tmp_path / "empty")
    for name in ("a{b}", "a/b", "a:b"):
        with pytest.raises(ModelError, match=r"must not be empty or contain / : \{"):
            ServedModel(tiny_export, name)


def test_served_model_follows_the_newest_version(tiny_export, tmp_path):
    folder = tmp_path / "mine"
    model = None
    for version in ("1", "2"):
        shutil.copytree(tiny_export, folder / version)
        model = ServedModel(folder) if model is None else model.reload()
        assert (model.version, model.find_replacement()) == (int(version), None)
    shutil.rmtree(folder / "2")
    assert model.find_replacement() is not None
    model = model.reload()
    shutil.rmtree(folder / "1")
    assert (model.version, model.find_replacement()) == (1, None)
    assert model.run("serving_default", {"inputs": [b"ein Hund"]})


def test_replacement_may_have_the_number_of_the_served_version(tiny_export, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(tiny_export, folder / "1")
    model, single = ServedModel(folder), ServedModel(folder / "1")
    assert model.find_replacement() is None
    shutil.rmtree(folder / "1")
    assert model.find_replacement() is None
    # A new export has other times than its copy.
    shutil.copytree(tiny_export, folder / "1", copy_function=shutil.copyfile)
    replacement = model.find_replacement()
    assert replacement == model.find_replacement() is not None
    assert model.reload().find_replacement() is None
    # A broken replacement may itself be replaced.
    (folder / "1" / "saved_model.pb").touch()
    assert model.find_replacement() not in (None, replacement)
    assert single.find_replacement() is None


def test_server_keeps_its_version_if_the_new_one_is_unsafe(
    tiny_export, tmp_path, caplog
):
    marker, folder = tmp_path / "marker", tmp_path / "mine"
    shutil.copytree(tiny_export, folder / "1")
    write_unsafe_export(tmp_path / "new", marker)
    model, unchecked = ServedModel(folder), ServedModel(folder, None, True)
    model.warm_up_requests = list
    with served(model, Limits(reload_interval=0.1)) as port:
        (tmp_path / "new").rename(folder / "2")
        wait_until(lambda: caplog.records or marker.exists(), "version 2", 60)
        assert "'WriteFile' is not allowed" in caplog.text
        assert predict(port, {"inputs": ["ein Hund"]}, "mine")[0] == 200
        (state,) = ask(port, "GET", "/v1/models/mine")[2]["model_version_status"]
    assert state["version"] == "1"
    assert not marker.exists()
    assert unchecked.reload().version == 2 and marker.exists()


def test_serve_logs_and_stops_cleanly_on_sigterm(tiny_export, tmp_path):
    # If this variable is set, the command shows TensorFlow's messages. They would come
    # before the line that is read below.
    hidden = {"TF_CPP_MIN_LOG_LEVEL"}
    folder, errors = tmp_path / "tiny", tmp_path / "errors"
    shutil.copytree(tiny_export, folder / "1")
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "keras_transformer", "serve", folder, "--port=0"],
            stderr=stderr,
            env={key: value for key, value in os.environ.items() if key not in hidden},
        )
    try:
        wait_until(
            lambda: "http" in errors.read_text() or process.poll() is not None,
            "the address",
            60,
        )
        found = re.fullmatch(
            r"loading the model\ntiny, version 1, at (http://127\.0\.0\.1:(\d+)/)\n",
            errors.read_text(),
        )
        assert found, errors.read_text()
        port = int(found[2])
        with urllib.request.urlopen(found[1], timeout=60) as page:
            assert b"<title>" in page.read()
        assert predict(port, {"inputs": ["ein Hund"]}, "tiny")[0] == 200
        with pytest.raises(ConnectionRefusedError):  # it listens at 127.0.0.1 only
            socket.create_connection(("127.0.0.2", port))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert errors.read_text().splitlines()[2:] == ["stopped"]
    finally:
        process.kill()
        process.wait()
