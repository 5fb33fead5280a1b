"""Options of a model and of its search reach the model in every command."""

import pytest
from commands import error_of, run_command

from keras_transformer import export as exports

# Arguments after the model. The working folder contains the file `text`.
ARGUMENTS = {
    "translate": ["--input", "text"],
    "parse": ["--input", "/dev/null"],
    "evaluate": ["--source", "text", "--reference", "text"],
    "score": ["--source", "text", "--target", "text"],
    "export": ["exported"],
}
SEARCHING = [name for name in ARGUMENTS if name != "score"]


@pytest.fixture
def run(model_path, monkeypatch, tmp_path):
    """Function that runs a command on the stand-in for a model."""

    def run(name, *options):
        result = run_command(name, model_path, *ARGUMENTS[name], *options, code=0)
        return result

    monkeypatch.setattr(exports, "export_translator", lambda *_, **__: "exported/1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("ab\n")
    return run


@pytest.mark.parametrize("name", SEARCHING)
def test_search_options_change_the_search(run, translator, name):
    run(name)
    assert translator.searches == []
    run(name, "--beam-size", 7)
    run(name, "--length-penalty", 0.25)
    run(name, "--length-penalty", 0)
    run(name, "--patience", 1.5)
    run(name, "--decoding", "min_length=3", "--decoding", "max_length_ratio=2")
    assert translator.searches == [
        {"beam_size": 7},
        {"length_penalty": 0.25},
        {"length_penalty": 0.0},
        {"patience": 1.5},
        {"min_length": 3, "max_length_ratio": 2.0},
    ]


@pytest.mark.parametrize("name", ["translate", "parse", "evaluate"])
def test_parallel_parts_configure_the_model(run, translator, name):
    run(name)
    run(name, "--parallel-parts", 2)
    assert [each["parallel_parts"] for each in translator.opened] == [1, 2]


@pytest.mark.parametrize("name", ["translate", "parse", "evaluate", "score"])
def test_ensemble_has_all_models_in_the_given_order(run, translator, tmp_path, name):
    paths = [tmp_path / "b", tmp_path / "a"]
    for path in paths:
        path.mkdir()
        (path / "model.keras").touch()
    run(name)
    run(name, "--ensemble", paths[0], "--ensemble", paths[1])
    opened = [
        [source.path for source in each["ensemble"]] for each in translator.opened
    ]
    assert opened == [[], paths]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("min_lenght=3", "unknown key min_lenght"),
        ("repetition_penalty=0", "repetition_penalty must be greater than 0"),
        ("coverage_penalty", "must have the form dotted.key=value"),
    ],
)
def test_settings_of_decoding_are_checked(model_path, setting, message):
    error = error_of(run_command("translate", model_path, "--decoding", setting))
    assert error.startswith("error: --decoding") and message in error
