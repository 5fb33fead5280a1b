"""Pictures and pages of `visualize`, for a model of two layers and three heads."""

import pytest
from commands import error_of, run_command
from matplotlib.figure import Figure

pytestmark = pytest.mark.usefixtures("models_stay_open")
SOURCE, TARGET = "der Hund", "ein Hund"
LONG = " ".join(["Hund"] * 400)


@pytest.fixture
def draw(tiny_model_file, tmp_path, monkeypatch):
    """Function that runs `visualize` and returns the figure that it writes."""
    figures, real = [], Figure.savefig

    def savefig(figure, *arguments, **options):
        figures.append(figure)
        real(figure, *arguments, **options)

    def draw(*options):
        texts = ["--source", SOURCE, "--target", TARGET]
        output = ["--output", tmp_path / "attention"]
        run_command("visualize", tiny_model_file, *texts, *output, *options, code=0)
        (figure,) = figures
        return figure

    monkeypatch.setattr(Figure, "savefig", savefig)
    return draw


@pytest.mark.parametrize(
    ("options", "titles", "texts"),
    [
        (["--head", 3], ["layer 1, head 3", "layer 2, head 3"], f"{SOURCE}\n{TARGET}"),
        (["--kind", "encoder", "--layer", 2, "--head", 1], ["layer 2, head 1"], SOURCE),
        (["--kind", "decoder", "--layer", 2, "--head", 1], ["layer 2, head 1"], TARGET),
    ],
)
def test_picture_shows_the_chosen_attention(draw, tmp_path, options, titles, texts):
    figure = draw(*options)
    assert [axis.get_title() for axis in figure.axes if axis.images] == titles
    assert figure.get_suptitle() == texts
    # The page shows all kinds.
    page = (tmp_path / "attention.html").read_text(encoding="utf-8")
    assert all(f'"{kind}":' in page for kind in ("cross", "encoder", "decoder"))


# A translation may have 50 subwords more than its source.
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--layer", 4, "layers 1 to 2. Received: layer 4"),
        ("--head", 4, "heads 1 to 3."),
        ("--source", LONG, "the source has 401 subwords, "),
        ("--target", LONG, "the target has 401 subwords, "),
    ],
)
def test_visualize_refuses_what_the_model_lacks(
    tiny_model_file, tmp_path, option, value, message
):
    options = {"--source": SOURCE, "--target": TARGET, "--output": tmp_path / "out"}
    words = [each for pair in (options | {option: value}).items() for each in pair]
    assert message in error_of(run_command("visualize", tiny_model_file, *words))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", " "], "--source: must not be blank"),
        (["--source", "x", "--target", ""], "--target: must not be blank"),
        (
            ["--source", "x\ny"],
            "--source: must be one line, because lines are translated separately",
        ),
        (["--source", "x"], "the translation is empty. Pass another one with --target"),
        (
            ["--source", "x", "--output", ".."],
            "--output ..: must be a file name, not a folder",
        ),
    ],
)
def test_visualize_names_the_mistake(
    model_path, translator, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    translator.translate = lambda lines, protect: ["" for _ in lines]
    error = error_of(run_command("visualize", model_path, *arguments))
    assert error == f"error: {message}\n"


@pytest.mark.parametrize("name", ["att.png", "att.html"])
def test_visualize_accepts_a_name_with_a_suffix(tiny_model_file, tmp_path, name):
    options = ["--source", SOURCE, "--target", TARGET, "--output", tmp_path / name]
    result = run_command("visualize", tiny_model_file, *options, code=0)
    assert result.stdout == f"{tmp_path / 'att.png'}\n{tmp_path / 'att.html'}\n"
