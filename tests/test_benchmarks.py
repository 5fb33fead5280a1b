"""Files that the scripts of the folder `benchmarks` write."""

import json
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


def test_scaling_writes_the_stored_points(tmp_path):
    scaling, name = load_script("scaling"), "scaling_position"
    stored = FOLDER / "results" / name
    panels = json.loads(stored.with_suffix(".json").read_text("utf-8"))["panels"]
    panels = {title: ("size", curves) for title, curves in panels.items()}
    scaling.write(tmp_path, name, panels, scaling.FILES[name][1])
    text = (tmp_path / f"{name}.csv").read_text("utf-8")
    assert text == stored.with_suffix(".csv").read_text("utf-8")
    assert len(list(tmp_path.iterdir())) == 4
