"""Scripts of the folder `benchmarks`: their options, and the files that they write."""

import json
import subprocess
import sys

import pytest
from benchmark_scripts import FOLDER, load_script


def test_a_failed_write_keeps_the_previous_rows(tmp_path):
    formatting = load_script("formatting")
    path = tmp_path / "a.csv"
    formatting.write_rows(path, [["size", "cost"], [1, 2.5]])

    def rows():
        yield ["size", "cost"]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        formatting.write_rows(path, rows())
    assert path.read_text("utf-8") == "size,cost\n1,2.5\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "name", ["attention_scale", "curve", "readme", "tables", "training_memory"]
)
def test_help_is_one_line_and_the_options(name):
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--help"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    usage, description, _ = found.stdout.split("\n\n", 2)
    assert usage.startswith(f"usage: {name}.py [-h]")
    text = (FOLDER / f"{name}.py").read_text("utf-8")
    assert " ".join(description.split()) == text.partition("\n")[0].strip('"')


@pytest.fixture
def run_folder(tmp_path):
    """Folder of a run with three validations.

    The second has no BLEU, and the perplexity of the first is not finite.
    """
    folder = tmp_path / "run"
    folder.mkdir()
    rows = [
        {"split": "validation", "seconds": 60 * step, "step": step, "perplexity": 2.0}
        for step in (1, 2, 3)
    ]
    rows[0]["bleu"], rows[2]["bleu"] = 10.0, 20.0
    rows[0]["perplexity"] = None
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def run_curve(monkeypatch, *arguments):
    curve = load_script("curve")
    monkeypatch.setattr(sys, "argv", ["curve.py", *map(str, arguments)])
    curve.main()
    return curve


def test_curve_draws_the_scores_that_exist(run_folder, tmp_path, monkeypatch):
    curve = run_curve(monkeypatch, run_folder, "--output", tmp_path / "new" / "x")
    scores, perplexities = (axes.lines[0] for axes in curve.pyplot.gcf().axes)
    assert scores.get_xydata().tolist() == [[1, 10], [3, 20]]
    assert perplexities.get_xydata().tolist() == [[2, 2], [3, 2]]
    # The .csv file of a call can be passed to the next one.
    again = tmp_path / "again"
    run_curve(monkeypatch, tmp_path / "new" / "x.csv", "--output", again)
    assert again.with_suffix(".csv").read_text() == (
        "run,minutes,step,bleu,perplexity\n"
        "run,1.0,1,10.00,\nrun,2.0,2,,2.000\nrun,3.0,3,20.00,2.000\n"
    )


def test_curve_rejects_repeated_names(run_folder, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run_curve(monkeypatch, run_folder, run_folder, "--output", tmp_path / "x")
    assert "Received twice: run" in capsys.readouterr().err
    assert list(tmp_path.glob("x*")) == []


def test_scaling_writes_the_stored_points(tmp_path):
    scaling, name = load_script("scaling"), "scaling_position"
    stored = FOLDER / "results" / name
    panels = json.loads(stored.with_suffix(".json").read_text("utf-8"))["panels"]
    panels = {title: ("size", curves) for title, curves in panels.items()}
    scaling.write(tmp_path, name, panels, scaling.FILES[name][1])
    text = (tmp_path / f"{name}.csv").read_text("utf-8")
    assert text == stored.with_suffix(".csv").read_text("utf-8")
    assert len(list(tmp_path.iterdir())) == 4


def test_machine_summary_omits_what_is_unknown():
    machine = load_script("machine")
    found = {"cores": 4, "features": ["avx2"], "memory_gib": 8, "threads": 1}
    assert machine.summary(found) == "4 cores, 1 thread, 8 GiB"
    found["features"] = ["amx_bf16", "avx512_bf16"]
    expected = "4 cores (AVX-512 BF16, AMX), 8 GiB"
    assert machine.summary(found, has_threads=False) == expected


def test_results_are_stored_before_they_are_formatted(tmp_path):
    report = load_script("report")
    with pytest.raises(KeyError):
        report.write(tmp_path, "training_x", {"rows": 1})
    assert json.loads((tmp_path / "training_x.json").read_text()) == {"rows": 1}


def test_result_name_must_have_a_table():
    report = load_script("report")
    assert report.result_name("training_base_parts") == "training_base_parts"
    with pytest.raises(ValueError, match="Received: base_parts"):
        report.result_name("base_parts")


def test_data_folder_needs_the_environment_variable(monkeypatch):
    workload = load_script("workload")
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", "data")
    assert workload.data_folder("craft").as_posix() == "data/craft"
    monkeypatch.delenv("KERAS_TRANSFORMER_DATA")
    with pytest.raises(SystemExit, match="the folder with craft"):
        workload.data_folder("craft")


def test_exported_models_translate_the_given_text(tmp_path, monkeypatch):
    agreement = load_script("huggingface_agreement")
    with pytest.raises(ValueError):
        agreement.split_argument("a model without a name")
    assert agreement.split_argument("a, b=runs/a") == ("a, b", "runs/a")
    text = tmp_path / "lr=1.en"
    text.write_text("one\ntwo\n")
    _, *source = agreement.split_argument(f"a=runs/a={text}")
    assert agreement.read_sources(*source) == ["one", "two"]
    monkeypatch.delenv("KERAS_TRANSFORMER_DATA", raising=False)
    with pytest.raises(SystemExit):
        agreement.read_sources("runs/a")
