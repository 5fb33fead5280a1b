"""`translate` with documents as input."""

import importlib

import pytest
from commands import error_of, run_command

from keras_transformer.documents import Document


@pytest.fixture
def page(tmp_path):
    """An HTML page with 25 texts."""
    path = tmp_path / "a.html"
    texts = "\n".join(f"<p>text {number}</p>" for number in range(25))
    path.write_text(f"<!DOCTYPE html>\n{texts}\n")
    return path


def test_documents_are_translated(page, tmp_path, model_path):
    page.write_text(page.read_text() + "<p>a text of 21 letters!")
    output = tmp_path / "b.html"
    result = run_command(
        "translate", model_path, "--input", page, "--output", output, code=0
    )
    assert "warning: line 27: too long" in result.stderr
    before, after = (Document(path).texts for path in (page, output))
    assert after == [text[:20][::-1] for text in before]
    assert output.read_text().startswith(
        "<!DOCTYPE html>\n<p>0 txet</p>\n<p>1 txet</p>"
    )
    result = run_command("translate", model_path, "--input", page, code=0)
    assert result.stdout == output.read_text()
    page.write_text("<p>a text\n<p>a <keep>text")
    error = error_of(run_command("translate", model_path, "--input", page))
    assert error.startswith(f"error: {page}:2: <keep> and </keep> must")


def test_documents_are_written_in_their_own_format(page, tmp_path, model_path):
    command = "translate", model_path, "--input", page, "--output"
    assert error_of(run_command(*command, tmp_path / "b.srt")).startswith(
        f"error: --output {tmp_path / 'b.srt'}: must be .html, as the document is"
    )
    run_command(*command, tmp_path / "b.xhtml", code=0)


def test_interrupted_documents_are_continued(
    page, tmp_path, model_path, translator, monkeypatch
):
    module = importlib.import_module("keras_transformer.cli.translate")
    monkeypatch.setattr(module, "CHUNK_SIZE", 10)
    output = tmp_path / "b.html"
    command = "translate", model_path, "-i", page, "-o", output, "--resume"
    real, calls = translator.n_best, []

    def n_best(lines, n=1, **options):
        calls.append(lines[0])
        if len(calls) == 2:
            raise MemoryError
        return real(lines, n, **options)

    monkeypatch.setattr(translator, "n_best", n_best)
    run_command(*command, code=2)
    assert not output.exists()
    run_command(*command, code=0)
    assert calls == ["text 0", "text 10", "text 10", "text 20"]
    assert Document(output).texts == [text[::-1] for text in Document(page).texts]
    assert not (tmp_path / "b.html.part").exists()
    assert "already translated" in run_command(*command, code=0).stderr


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            *("a.po", []),
            "a.po:1: must be a comment, or a string in double quotes, alone or after a "
            "keyword such as msgid. Received: '<!DOCTYPE html>'",
        ),
        ("a.html", ["--n-best", "2"], "--n-best: cannot be used with .html"),
        ("a.html", ["--json"], "--json: cannot be used with .html"),
        ("a.html", ["--prefix", "a"], "--prefix: cannot be used with .html"),
        ("a.html", ["--sampling"], "--sampling: cannot be used with .html"),
    ],
)
def test_unusable_documents(page, name, options, message, model_path):
    path = page.rename(page.with_name(name))
    output = page.with_name("out")
    arguments = "--input", path, "--output", output, *options
    error = error_of(run_command("translate", model_path, *arguments))
    assert error.strip().endswith(message)
    assert not output.exists()
