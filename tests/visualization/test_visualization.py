"""Attention figures and the attention page show the model's scores and both texts."""

import json
import re

import keras
import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure

import keras_transformer as kt
from keras_transformer import pipelines, visualization
from keras_transformer.errors import ModelError

SOURCE, TARGET = "der Hund </script> läuft", "ein $Hund$ schläft"


@pytest.fixture(scope="module")
def model_and_tokenizer():
    tokenizer = pipelines.train_tokenizer("bpe", [SOURCE, TARGET] * 3, 300)
    keras.utils.set_random_seed(3)
    model = kt.Transformer(
        tokenizer.vocabulary_size, num_layers=2, d_model=24, d_ff=40, num_heads=3
    )
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return model, tokenizer


@pytest.fixture(scope="module")
def attention(model_and_tokenizer):
    return visualization.compute_attention(*model_and_tokenizer, SOURCE, TARGET)


def join_first(scores, first, axis):
    """Joins the tokens `first` and `first + 1` of queries (axis -2) or keys (-1).

    The attention from several subwords is their mean, and the attention to them is
    their sum.
    """
    joined = np.take(scores, [first, first + 1], axis).sum(axis, keepdims=True)
    before = np.take(scores, range(first), axis)
    after = np.take(scores, range(first + 2, scores.shape[axis]), axis)
    joined = joined / 2 if axis == -2 else joined
    return np.concatenate([before, joined, after], axis)


def test_attention_of_matches_the_model(model_and_tokenizer, attention):
    model, tokenizer = model_and_tokenizer
    rows = tokenizer.tokenize([SOURCE, TARGET]).to_list()
    # Tokenization adds a leading space, which is not shown if it is a separate subword.
    added = [tokenizer.pieces()[row[0]] == "\u2581" for row in rows]
    expected = model.attention_scores(
        {
            "source_ids": np.array([[*rows[0], tokenizer.end_id]]),
            "target_ids": np.array([[tokenizer.start_id, *rows[1]]]),
        }
    )
    # Position of the space among queries and keys. What the decoder reads begins with
    # the start symbol.
    spaces = {"encoder": ((0, 0), (0, 0)), "decoder": ((1, 1), (1, 1))}
    spaces["cross"] = (1, 0), (0, 0)
    for kind, places in spaces.items():
        scores = np.asarray(expected[kind])[0]
        for axis, (side, place) in zip((-2, -1), places, strict=True):
            if added[side]:
                scores = join_first(scores, place, axis)
        np.testing.assert_allclose(attention.scores[kind], scores, rtol=1e-5)
    lengths = [len(row) + 1 - each for row, each in zip(rows, added, strict=True)]
    assert "".join(attention.source) == SOURCE + "</s>"
    assert "".join(attention.decoder_outputs) == TARGET + "</s>"
    # `read` contains the decoder's input tokens, `predicted` the next tokens.
    assert "".join(attention.decoder_inputs) == "<s>" + TARGET
    for kind, rows, columns in (
        ("encoder", lengths[0], lengths[0]),
        ("decoder", lengths[1], lengths[1]),
        ("cross", lengths[1], lengths[0]),
    ):
        scores = attention.scores[kind]
        assert scores.shape == (2, 3, rows, columns)
        np.testing.assert_allclose(scores.sum(axis=-1), 1, rtol=1e-5)
        assert tuple(map(len, attention.labels(kind))) == (rows, columns)


def test_select_returns_one_layer_or_head(attention):
    assert [found[:2] for found in attention.select("encoder", layer=2)] == [
        (2, 1),
        (2, 2),
        (2, 3),
    ]
    ((layer, head, scores),) = attention.select("decoder", 1, 3)
    assert (layer, head) == (1, 3)
    np.testing.assert_array_equal(scores, attention.scores["decoder"][0, 2])
    with pytest.raises(ModelError, match=r"layers 1 to 2. Received: layer 3"):
        attention.select("cross", layer=3)
    with pytest.raises(ModelError, match=r"heads 1 to 3. Received: head 0"):
        attention.select("cross", head=0)
    with pytest.raises(ModelError, match="kind must be one of encoder"):
        attention.select("self")
    with pytest.raises(ModelError, match="heads 1 to 3"):
        visualization.write_figure(attention, "unwritten", head=4)


def test_page_contains_scores_and_no_external_resources(attention, tmp_path):
    visualization.write_page(attention, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    # `</script>` in the source sentence must not end the page's script.
    assert page.count("</script>") == 1
    data = json.loads(re.search(r"^const data = (.*);$", page, re.MULTILINE)[1])
    # The page rounds scores to four decimals.
    for kind, scores in attention.scores.items():
        np.testing.assert_allclose(data[kind]["scores"], scores, atol=5.1e-5)
        assert (data[kind]["rows"], data[kind]["columns"]) == attention.labels(kind)
        assert tuple(data[kind]["axes"]) == attention.axes(kind)
    assert data["texts"] == [SOURCE, TARGET]
    # Screen readers would skip the content of an element with the role `img`.
    assert 'role="img"' not in page and 'role="group"' in page
    assert not re.search(r"(src|href|url)\s*[=(]", page)
    assert re.findall(r"https?://[^\"]*", page) == ["http://www.w3.org/2000/svg"]


def test_figure_labels_axes_color_scale_and_texts(attention, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: drawn.append(figure)
    )
    names = {"cross": [TARGET, SOURCE], "encoder": [SOURCE], "decoder": [TARGET]}
    for kind, texts in names.items():
        visualization.write_figure(attention, tmp_path / "a.png", kind)
        figure = drawn.pop()
        assert [figure.get_supylabel(), figure.get_supxlabel()] == [
            *attention.axes(kind)
        ]
        assert "attention" in {axis.get_ylabel() for axis in figure.axes}
        panels = [axis for axis in figure.axes if axis.images]
        for axis, (layer, head, scores) in zip(
            panels, attention.select(kind), strict=True
        ):
            assert axis.get_title() == f"layer {layer}, head {head}"
            np.testing.assert_array_equal(axis.images[0].get_array(), scores)
        title = figure.get_suptitle().replace("\\$", "$")
        assert all(text in title for text in texts)
        assert len(title.split("\n")) == len(texts)


def test_characters_spelled_in_bytes_are_shown_whole(model_and_tokenizer, attention):
    model, tokenizer = model_and_tokenizer
    source, target = "😀 der 漢x", "猫"
    found = visualization.compute_attention(model, tokenizer, source, target)
    assert "".join(found.source) == source + "</s>"
    assert found.source[0] == "😀" and "漢" in found.source
    assert found.decoder_outputs == ["猫", "</s>"]
    assert found.decoder_inputs == ["<s>", "猫"]
    for kind, scores in found.scores.items():
        rows, columns = found.labels(kind)
        assert scores.shape == (2, 3, len(rows), len(columns))
        np.testing.assert_allclose(scores.sum(axis=-1), 1, rtol=1e-5)
    # Computed by hand: scores of a character's byte tokens are averaged over rows (the
    # target) and summed over columns (the source).
    ids = [[*tokenizer.tokenize([text]).to_list()[0]] for text in (source, target)]
    plain = model.attention_scores(
        {
            "source_ids": np.array([[*ids[0], tokenizer.end_id]], "int32"),
            "target_ids": np.array([[tokenizer.start_id, *ids[1]]], "int32"),
        }
    )["cross"][0]
    count = ids[0].index(tokenizer.tokenize([" der"]).to_list()[0][-1])
    expected = np.asarray(plain)[..., :-1, :count].sum(axis=-1).mean(axis=-1)
    np.testing.assert_allclose(found.scores["cross"][..., 0, 0], expected, rtol=1e-5)


def test_unpaired_surrogates_are_drawn_as_question_marks(model_and_tokenizer, tmp_path):
    texts = "\ud800 ein Hund", "a dog \udfff"
    attention = visualization.compute_attention(*model_and_tokenizer, *texts)
    assert attention.texts == ("? ein Hund", "a dog ?")
    visualization.write_page(attention, tmp_path / "a.html")
    visualization.write_figure(attention, tmp_path / "a.png", layer=1, head=1)
    pixels = image.imread(tmp_path / "a.png")
    assert min(pixels.shape[:2]) > 200
    assert pixels[..., 0].std() > 0.05


def test_attention_of_rejects_texts_that_it_cannot_show(model_and_tokenizer):
    _, tokenizer = model_and_tokenizer
    with pytest.raises(ModelError, match="the target must not be blank"):
        visualization.compute_attention(*model_and_tokenizer, SOURCE, "  ")
    sizes = {"d_model": 8, "d_ff": 8, "num_heads": 2, "num_layers": 1}
    model = kt.Transformer(
        tokenizer.vocabulary_size, **sizes, positions="learned", max_length=4
    )
    with pytest.raises(
        ModelError, match=r"has 4 learned positions, but a text has \d+"
    ):
        visualization.compute_attention(model, tokenizer, SOURCE, TARGET)


def test_long_texts_give_pictures_of_limited_size(monkeypatch):
    """At full resolution, 500 tokens would need more than 12,000 pixels."""
    names = [f"{number}" for number in range(500)]
    scores = {"cross": np.eye(500)[None, None]}
    attention = visualization.Attention(names, names, names, scores)
    sizes = []
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda figure, path, dpi: sizes.extend(figure.get_size_inches() * dpi),
    )
    visualization.write_figure(attention, "picture.png")
    assert 9_000 < min(sizes) <= max(sizes) <= 10_000 + 1e-6
