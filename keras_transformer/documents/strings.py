"""Formats whose texts have no inline markup: subtitles, .po files and JSON."""

import json
import re

from keras_transformer.documents.texts import Text, wrapped_text
from keras_transformer.errors import DataError

_TIME = r"(?:\d+:)?\d\d:\d\d[.,]\d+"
# A line with a time, and the lines up to the next blank one.
_CUE = re.compile(
    rf"^[ \t]*{_TIME}[ \t]+-->[ \t]+{_TIME}.*\n((?:[ \t]*\S.*(?:\n|\Z))+)", re.MULTILINE
)


def find_subtitles(text, path):
    kind = "WEBVTT" if path.suffix.lower() == ".vtt" else "SubRip"
    if kind == "WEBVTT" and not text.lstrip("\ufeff").startswith(kind):
        raise DataError(f"{path}:1: must be {kind}")
    if not re.search(_TIME, text) and text.strip():
        raise DataError(f"{path}:1: must be {kind}, but no line has a time")
    cues = [cue.span(1) for cue in _CUE.finditer(text)]
    if kind == "SubRip":
        # Text after an empty line still belongs to a cue.
        begins = [*[cue.start() for cue in _CUE.finditer(text)][1:], len(text)]
        for (_, end), begin in zip(list(cues), begins, strict=False):
            found = re.compile(r"(?:[ \t]*\S.*(?:\n|\Z))+").finditer(text, end, begin)
            cues += [one.span() for one in found]
    for start, end in sorted(cues):
        cue = text[start:end]
        is_open = "</v>" not in cue  # as is common if one speaks alone
        end -= len(cue) - len(cue.rstrip())
        found = re.finditer(r"[ \t\r]*\n[ \t]*", text[start:end])
        breaks = [(start + one.start(), start + one.end()) for one in found]
        # Each line of a dialogue is a separate text.
        is_dialogue = all(
            text[b] in "-–" or (is_open and _VOICE.match(text, b)) for _, b in breaks
        )
        lines = [*breaks, (end, end)] if is_dialogue else [(end, end)]
        breaks = [] if is_dialogue else breaks
        for line_end, next_start in lines:
            voice = _VOICE.match(text, start, line_end) if is_open else None
            yield wrapped_text(text, voice.end() if voice else start, line_end, breaks)
            start = next_start


_VOICE = re.compile(r"<v[. ][^>]*>\s*")


_STRING = r'"(?:[^"\\\r\n]|\\.)*"'
_PO_LINE = re.compile(
    r"\ufeff?\s*(#.*|((msgctxt|msgid|msgid_plural|msgstr(\[\d+\])?)\s*)?"
    rf"{_STRING}\s*)?"
)
_PO_FIELD = re.compile(
    rf"^(msgid|msgid_plural|msgstr(?:\[\d+\])?)\s*({_STRING}(?:\s*{_STRING})*)", re.M
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def find_po_texts(text, path):
    for number, line in enumerate(text.split("\n"), 1):
        if not _PO_LINE.fullmatch(line):
            raise DataError(
                f"{path}:{number}: must be a comment, or a string in double quotes, "
                f"alone or after a keyword such as msgid. Received: {line!r:.80}"
            )

    def write(translation):
        lines = [_po_string(line) for line in translation.splitlines(keepends=True)]
        return "\n".join(['""', *lines] if len(lines) > 1 else lines)

    source = {}
    for found in _PO_FIELD.finditer(text):
        field = found[1]
        value = "".join(one[1:-1] for one in re.findall(_STRING, found[2]))
        if not field.startswith("msgstr"):
            source[field] = re.sub(
                r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), value
            )
        elif not value:
            is_plural = field not in ("msgstr", "msgstr[0]")
            message = source["msgid_plural" if is_plural else "msgid"]
            plain, restore = _without_accelerator(message)
            yield Text(
                plain,
                *found.span(2),
                lambda translation, restore=restore: write(restore(translation)),
            )


# What marks the key of a menu item, before a letter. Not that of "AT&T" or "&amp;".
_ACCELERATOR = re.compile(r"(?<!\w)[&_](?=[^\W_])(?!\w+;)|(?<=\w)&(?=[a-z])(?!\w+;)")


def _without_accelerator(message):
    """Returns a message without its accelerator, and a function that sets it again.

    It is set before the same letter if there is one, best at the start of a word.
    """
    found = _ACCELERATOR.search(message)
    if not found or message.count(found[0]) > 1:
        return message, str
    place = found.start()
    plain, letter = message[:place] + message[found.end() :], message[found.end()]

    def restore(translation):
        at = place if translation == plain else None
        for pattern in (rf"\b{letter}", letter, r"[^\W\d_]"):
            if at is None and (new := re.search(pattern, translation, re.IGNORECASE)):
                at = new.start()
        return (
            translation
            if at is None
            else found[0].join([translation[:at], translation[at:]])
        )

    return plain, restore


def _po_string(line):
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')
    for letter, character in _ESCAPES.items():
        escaped = escaped.replace(character, f"\\{letter}")
    return f'"{escaped}"'


_SURROGATE = re.compile("[\ud800-\udfff]")


def find_json_texts(text, path):
    try:
        json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    is_ascii = text.isascii()
    for found in re.finditer(rf"({_STRING})(\s*:)?", text):
        if not found[2]:  # a value, not a key
            value = json.loads(found[1])
            if _SURROGATE.search(value):  # half a character, which no model reads
                continue

            def write(translation, value=value, written=found[1]):
                if translation == value:  # could be written in several ways
                    return written
                return json.dumps(translation, ensure_ascii=is_ascii)

            yield Text(value, *found.span(1), write)
