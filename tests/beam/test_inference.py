"""Translation and scoring with an export by Apache Beam.

Expected results come from calling the export's signatures with single texts.
"""

import gzip

import pytest
import tensorflow as tf
from malicious_graphs import write_unsafe_export
from tiny_export import TEXTS

from keras_transformer.errors import DataError, ModelError

pytest.importorskip("apache_beam")

from keras_transformer.beam import inference as beam_inference

TWO_WORKERS = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
SECOND = ["die Katze schläft", "noch ein\u2028Hund", "", "und"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Paths of a text file, a gzip file, and an empty file."""
    folder = tmp_path_factory.mktemp("lines")
    (folder / "a.de").write_text("".join(f"{text}\n" for text in TEXTS))
    with gzip.open(folder / "b.de.gz", "wt") as file:
        file.write("\n".join(SECOND))  # the last line has no line end
    (folder / "c.de").write_text("")
    return [folder / name for name in ("a.de", "b.de.gz", "c.de")]


def lines_of(path):
    return path.read_text(encoding="utf-8").split("\n")


def test_translation_keeps_line_order(tiny_export, tiny_signatures, files, tmp_path):
    written = beam_inference.run_with_apache_beam(
        tiny_export, "translate", files, tmp_path / "out", pipeline_options=TWO_WORKERS
    )
    assert [path.rpartition("/")[2] for path in written] == ["a.de", "b.de", "c.de"]
    run = tiny_signatures["serving_default"]
    for name, texts in (("a.de", TEXTS), ("b.de", SECOND)):
        expected = [
            run(inputs=tf.constant([text]))["translations"].numpy()[0].decode()
            for text in texts
        ]
        assert any(expected) and "" in expected
        assert lines_of(tmp_path / "out" / name) == [*expected, ""]
    assert lines_of(tmp_path / "out" / "c.de") == [""]
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_score_matches_export_signature(tiny_export, tiny_signatures, files, tmp_path):
    source, target = tmp_path / "a.de", tmp_path / "a.en"
    source.write_text("".join(f"{text}\n" for text in TEXTS))
    target.write_text("".join(f"{text}\n" for text in reversed(TEXTS)))
    beam_inference.run_with_apache_beam(
        tiny_export, "score", [source], tmp_path / "out", [target], batch_size=2
    )
    run = tiny_signatures["score"]
    found = lines_of(tmp_path / "out" / "a.de")[:-1]
    assert len(found) == len(TEXTS)
    for score, text, translation in zip(found, TEXTS, TEXTS[::-1], strict=True):
        scored = run(inputs=tf.constant([text]), targets=tf.constant([translation]))
        assert float(score) == pytest.approx(float(scored["log_probs"][0]), abs=1e-4)
    target.write_text("one line\n")
    with pytest.raises(
        DataError, match=r"same number of lines.*a.en ends after line 1"
    ):
        beam_inference.run_with_apache_beam(
            tiny_export, "score", [source], tmp_path / "other", [target]
        )


def test_hostile_export_is_rejected(tmp_path):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def steal(inputs):
        tf.io.write_file(str(tmp_path / "stolen"), inputs[0])
        return {"translations": inputs}

    module = tf.Module()
    tf.saved_model.save(module, str(tmp_path / "1"), {"serving_default": steal})
    (tmp_path / "a.de").write_text("Hund\n")
    with pytest.raises(ModelError, match="WriteFile"):
        beam_inference.run_with_apache_beam(
            tmp_path / "1", "translate", [tmp_path / "a.de"], tmp_path / "out"
        )
    assert not (tmp_path / "stolen").exists()


def test_unsafe_export_runs_if_allowed(tmp_path):
    write_unsafe_export(tmp_path / "1", tmp_path / "marker")
    (tmp_path / "a.de").write_text("Hund\nKatze\n")
    beam_inference.run_with_apache_beam(
        *(tmp_path / "1", "translate", [tmp_path / "a.de"], tmp_path / "out"),
        pipeline_options=TWO_WORKERS,
        allow_unsafe=True,
    )
    assert lines_of(tmp_path / "out" / "a.de") == ["Hund", "Katze", ""]


def test_truncated_lines_are_reported(tiny_export, tmp_path, caplog):
    path = tmp_path / "a.de"
    path.write_text("Hund\n" + "Hund" * 200 + "\n" + "Katze" * 300 + "\n")
    with caplog.at_level("WARNING", "keras_transformer"):
        beam_inference.run_with_apache_beam(
            tiny_export, "translate", [path], tmp_path / "out"
        )
    assert "lines or their translations exceed the export's maximum" in caplog.text


def test_batch_size_respects_export_limit(small_batch_export, tmp_path):
    path = tmp_path / "a.de"
    # The export accepts at most seven texts per call.
    path.write_text("Hund\n" * 15)
    beam_inference.run_with_apache_beam(
        small_batch_export, "translate", [path], tmp_path / "out", batch_size=64
    )
    assert (tmp_path / "out" / "a.de").read_text().count("\n") == 15


def test_invalid_paths_are_rejected_first(tiny_export, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.en").write_text("old")
    for task, sources, output, targets, message in (
        ("translate", ["a.en"], "out", ["a.de"], "target files are for scoring only"),
        ("translate", ["a.en"], "a.en", [], "a.en: is a file, not a folder"),
        ("translate", ["a.en"], "a.en/out", [], "out: cannot be created"),
        ("translate", ["x/a.en", "y/a.en.gz"], "out", [], "different names"),
        ("score", ["a.en"], ".", ["a.de"], "a.en: already exists"),
    ):
        with pytest.raises(DataError, match=message):
            beam_inference.run_with_apache_beam(
                tiny_export, task, sources, output, targets
            )
    assert (tmp_path / "a.en").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1
