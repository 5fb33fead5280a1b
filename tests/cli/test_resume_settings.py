"""`translate --resume` refuses to continue with other settings of the model."""

import pytest

from keras_transformer.decoding import BeamSearch

SEARCH = BeamSearch(beam_size=3, length_penalty=0.6, extra_length=5)
# Length of the beginning of the output that an interrupted command leaves.
NUM_BYTES = 20


@pytest.fixture
def save(tiny_model, tmp_path):
    """Function that writes a preset with the same weights and other settings."""
    model, tokenizer = tiny_model

    def save(search=SEARCH, max_source_length=40):
        return model.save_to_preset(
            tmp_path / "preset",
            tokenizer,
            search=search,
            max_source_length=max_source_length,
        )

    return save


@pytest.fixture
def translate(save, run_command, tmp_path):
    save()
    (tmp_path / "in").write_text("der Hund läuft\nein Hund\ndie Katze schläft\n" * 2)
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out"]

    def translate(*arguments):
        return run_command(
            "translate", tmp_path / "preset", *files, "--resume", *arguments
        )

    return translate


@pytest.fixture
def interrupt(translate, tmp_path):
    """Function that returns the whole output and leaves its beginning.

    The record is the one that the command writes before the first line.
    """

    def interrupt(*arguments):
        result = translate(*arguments)
        assert result.exit_code == 0, result.stderr
        text = (tmp_path / "out").read_bytes()
        (tmp_path / "out").unlink()
        (tmp_path / "out.part").write_bytes(text[:NUM_BYTES])
        return text

    return interrupt


def assert_refused(result, tmp_path, text):
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {tmp_path / 'out.part'}: was made with a different set of options; "
        "remove it to start over\n"
    )
    assert (tmp_path / "out.part").read_bytes() == text[:NUM_BYTES]
    assert not (tmp_path / "out").exists()


CHANGES = {
    "beam_size": {"search": BeamSearch(2, 0.6, extra_length=5)},
    "length_penalty": {"search": BeamSearch(3, 1.0, extra_length=5)},
    "length_penalty_kind": {"search": BeamSearch(3, 0.6, "power", extra_length=5)},
    "patience": {"search": BeamSearch(3, 0.6, patience=1.0, extra_length=5)},
    "extra_length": {"search": BeamSearch(3, 0.6, extra_length=6)},
    "max_source_length": {"max_source_length": 39},
}


def test_resume_refuses_changed_settings(save, translate, interrupt, tmp_path):
    text = interrupt()
    for changes in CHANGES.values():
        save(**changes)
        assert_refused(translate(), tmp_path, text)
    save()
    assert translate().exit_code == 0
    assert (tmp_path / "out").read_bytes() == text


def test_resume_refuses_changed_settings_of_sampling(
    save, translate, interrupt, tmp_path
):
    text = interrupt("--sampling")
    for name in ("extra_length", "max_source_length"):
        save(**CHANGES[name])
        assert_refused(translate("--sampling"), tmp_path, text)
    save()
    assert translate("--sampling").exit_code == 0
    assert (tmp_path / "out").read_bytes() == text


def test_resume_compares_the_settings_in_use(save, translate, interrupt, tmp_path):
    """An option overrides the model's setting, so only the value in use counts."""
    text = interrupt("--beam-size", "2")
    save(**CHANGES["beam_size"])
    assert translate().exit_code == 0
    assert (tmp_path / "out").read_bytes() == text
