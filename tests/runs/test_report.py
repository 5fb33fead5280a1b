"""Training curves show the values of metrics.jsonl in the right panels."""

import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from keras_transformer.errors import RunError
from keras_transformer.runs.report import draw_curves

TRAIN = [
    {"split": "train", "step": step, "seconds": 6.0 * step, "loss": 9 - step / 100}
    | {"learning_rate": step / 1e6}
    for step in (100, 200, 300)
]
VALIDATION = [
    {"split": "validation", "step": 100, "seconds": 660.0, "perplexity": 90.5}
    | {"bleu": 3.25},
    {"split": "validation", "step": 300, "seconds": 2000.0, "perplexity": 12.0}
    | {"bleu": 21.5},
]


def write_run(folder, rows, tail=""):
    folder.mkdir(parents=True)
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + tail)
    return folder


@pytest.fixture
def figures(monkeypatch):
    """List of the figures that a test has saved so far."""
    saved, real = [], Figure.savefig

    def savefig(figure, *args, **kwargs):
        saved.append(figure)
        real(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved


def curves_of(figure):
    """Returns {(title of the panel, unit of x): list of curves `[points, 2]`}."""
    rows = np.reshape(figure.axes, (-1, 2))
    units = [axis.get_xlabel() for axis in rows[-1]]
    return {
        (row[0].get_ylabel(), unit): [line.get_xydata() for line in axis.lines]
        for row in rows
        for axis, unit in zip(row, units, strict=True)
    }


def test_curves_show_metrics_against_steps_and_minutes(tmp_path, figures):
    # A killed run leaves an incomplete last line.
    run = write_run(tmp_path / "run", [*TRAIN, *VALIDATION], tail='{"split": "tr')
    draw_curves([run], run / "curves.png")
    curves = curves_of(figures[0])
    expected = {
        "training loss": ([100, 200, 300], [10, 20, 30], [8, 7, 6]),
        "learning rate": ([100, 200, 300], [10, 20, 30], [1e-4, 2e-4, 3e-4]),
        "validation perplexity": ([100, 300], [11, 100 / 3], [90.5, 12]),
        "validation BLEU": ([100, 300], [11, 100 / 3], [3.25, 21.5]),
    }
    assert {title for title, _ in curves} == set(expected)
    for title, (steps, minutes, values) in expected.items():
        ((by_steps,), (by_minutes,)) = (
            curves[title, unit] for unit in ("steps", "minutes of training")
        )
        np.testing.assert_allclose(by_steps.T, [steps, values])
        np.testing.assert_allclose(by_minutes.T, [minutes, values])
    assert (run / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_curves_of_several_runs_share_a_picture(tmp_path, figures):
    first = write_run(tmp_path / "a", TRAIN)
    second = write_run(tmp_path / "b$", [*TRAIN[:1], *VALIDATION[1:]])
    draw_curves([first, second], tmp_path / "both.svg")
    curves = curves_of(figures[0])
    assert [len(xy) for xy in curves["training loss", "steps"]] == [3, 1]
    assert [len(xy) for xy in curves["validation BLEU", "steps"]] == [1]
    (legend,) = figures[0].legends
    # Matplotlib would read an unescaped $ as the start of a formula.
    assert [text.get_text() for text in legend.get_texts()] == ["a", r"b\$"]
    lines = figures[0].axes[0].lines
    assert len({line.get_color() for line in lines}) == 2
    assert len({line.get_linestyle() for line in lines}) == 2
    assert "<svg" in (tmp_path / "both.svg").read_text()


def test_curves_mark_stage_starts(tmp_path, figures):
    stages = [
        {"split": "stage", "step": step, "seconds": 6.0 * step, "stage": number}
        for number, step in ((1, 0), (2, 150), (3, 250))
    ]
    run = write_run(tmp_path / "run", [stages[0], *TRAIN, *stages[1:]])
    draw_curves([run], run / "curves.png")
    loss, *marks = curves_of(figures[0])["training loss", "steps"]
    assert len(loss) == 3
    assert [line[0][0] for line in marks] == [150, 250]
    _, *marks = curves_of(figures[0])["learning rate", "minutes of training"]
    assert [line[0][0] for line in marks] == [15, 25]
    texts = [text.get_text() for text in figures[0].axes[0].texts]
    assert texts == ["stage 2", "stage 3"]
    # With several runs, the lines have the colors of the runs.
    other = write_run(tmp_path / "other", TRAIN)
    draw_curves([other, run], tmp_path / "both.png")
    _, second, *marks = figures[1].axes[0].lines
    assert {line.get_color() for line in marks} == {second.get_color()}
    assert not figures[1].axes[0].texts


def test_curves_omit_values_that_are_not_finite(tmp_path, figures):
    rows = [
        *TRAIN[:2],
        {**TRAIN[2], "loss": None},
        {**TRAIN[2], "seconds": None},
        {"split": "skipped", "step": 250, "seconds": 1.0, "reason": "x"},
    ]
    runs = [write_run(tmp_path / name / "run", rows) for name in ("x", "y")]
    draw_curves(runs, tmp_path / "both.png")
    assert len(curves_of(figures[0])["training loss", "steps"][0]) == 2
    # The labels are the shortest ends of the paths that distinguish the runs.
    texts = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert texts == ["x/run", "y/run"]


@pytest.mark.parametrize("rows", [[], [{"split": "stage", "step": 0, "seconds": 0}]])
def test_curves_need_metrics(tmp_path, rows):
    run = write_run(tmp_path / "run", rows)
    with pytest.raises(
        RunError, match=r"run: metrics.jsonl contains no metrics to plot"
    ):
        draw_curves([run], run / "curves.png")
    assert not (run / "curves.png").exists()
