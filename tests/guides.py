"""Fenced blocks of Markdown pages, and checks of the commands in them.

Comments on the lines above a block, which the rendered page does not show, control how
the tests run it:

    <!-- test: replace OLD with NEW -->     run it with OLD replaced
    <!-- test: skip, REASON -->             do not run it
    <!-- test: instead, COMMAND -->         run COMMAND in its place
    <!-- test: file NAME -->                write it to a file, do not run it
    <!-- test: as written -->               do not shorten its training
    <!-- test: output -->                   text that the block above prints
    <!-- test: not compared, REASON -->     text after a block, not compared

In expected output `...` matches any text within a line. A line of only `...` matches
any number of lines.
"""

import gzip
import importlib.util
import itertools
import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^( *)```(\w*)[^\n`]*\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
HINT = re.compile(r"<!-- test: (.*?) -->")
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
# Commands with subcommands.
GROUPS = {"corpus"}
SHELLS = {"bash", "console", "sh", "shell"}
# Folders of the project that commands create.
WRITTEN = {"runs", "saved_models"}
# Hints that do not change the code of a block.
HINTS_WITHOUT_EFFECT = ("as written", "output", "not compared, ")


class Block:
    """A fenced block with its language, code and first line number.

    `hints` are the `<!-- test: ... -->` comments above it.
    """

    def __init__(self, match, text):
        self.language = match[2]
        self.code = re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)
        self.line = text.count("\n", 0, match.start(3)) + 1
        self.hints = []
        for line in reversed(text[: match.start()].splitlines()):
            if line.strip() and not HINT.fullmatch(line.strip()):
                break
            self.hints[:0] = HINT.findall(line)

    def to_run(self):
        """Returns the code after replacements, or an empty string if it is skipped."""
        code = self.code
        for hint in self.hints:
            if hint.startswith(("skip, ", "file ")):
                return ""
            if hint.startswith(HINTS_WITHOUT_EFFECT):
                continue
            if hint.startswith("instead, "):
                return hint.removeprefix("instead, ") + "\n"
            assert hint.startswith("replace "), f"line {self.line}: hint {hint!r}"
            old, between, new = hint.removeprefix("replace ").partition(" with ")
            assert between and old in code, f"line {self.line}: no {old!r} to replace"
            code = code.replace(old, new)
        return code


def blocks(text):
    return [Block(match, text) for match in FENCE.finditer(text)]


def is_code(block):
    return block.language == "python" or block.language in SHELLS


def unchecked_outputs(text):
    """Returns the line of each `text` block after code that no test compares.

    Blocks whose hints give a reason are exempt.
    """
    return [
        block.line
        for before, block in itertools.pairwise(blocks(text))
        if block.language == "text"
        and is_code(before)
        and not any(
            hint == "output" or hint.startswith("not compared, ")
            for hint in block.hints
        )
    ]


def matches_output(expected, printed):
    """Returns whether `printed` matches `expected`, where `...` is a wildcard."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else line_pattern(line)
        for line in trim_lines(expected)
    )
    text = "".join(f"{line}\n" for line in trim_lines(printed))
    return re.fullmatch(pattern, text) is not None


def line_pattern(line):
    return ".*".join(re.escape(part) for part in line.split("...")) + r"\n"


def trim_lines(text):
    """Returns the lines without trailing spaces and without blank lines at the ends."""
    return [line.rstrip() for line in text.strip("\n").rstrip().splitlines()]


def commands(code):
    """Yields each command of a shell block as a list of words.

    If lines begin with `$ `, all other lines are output and are ignored.
    """
    lines = code.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        command = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;"):
                if command:
                    yield command
                command = []
            else:
                command.append(word)


def find_problems(command):
    """Yields a message for each unknown name in a command, e.g. an option or a file."""
    while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
        command = command[1:]
    if not command:
        return
    program, *words = command
    program = pathlib.PurePath(program).name
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        for word in words:
            if "=" not in word and word[:1] != "-" and word not in targets:
                yield f"make {word}: no such target"
    elif program == "keras-transformer":
        yield from command_problems(words)
    elif program == "pip" or words[:2] == ["-m", "pip"]:
        extras = re.findall(r'^ +"([\w-]+)": ', (ROOT / "setup.py").read_text(), re.M)
        for word in words:
            ours = re.fullmatch(r"(?:\.|keras-transformer-seq2seq)\[(.*)\]", word)
            for extra in ours[1].split(",") if ours else ():
                if extra not in extras:
                    yield f"pip install: no extra {extra!r}"
    elif words[:1] == ["-m"] and importlib.util.find_spec(words[1]) is None:
        yield f"python -m {words[1]}: no such module"
    tops = {path.name for path in ROOT.iterdir()} - WRITTEN
    for word in command:
        word = word.removeprefix("./")
        if word.split("/")[0] in tops and not (ROOT / word).exists():
            yield f"{word}: no such file in the project"


def command_problems(words):
    from keras_transformer.recipes import load_recipe, shipped_recipes

    command = next((word for word in words if word[:1] != "-"), None)
    if command in GROUPS:
        command = " ".join(words[:2])
    text = help_of(command)
    if text is None:
        yield f"keras-transformer {command}: no such command"
        return
    for word in words:
        option = word.partition("=")[0]
        if option[:2] == "--" and not re.search(rf"{option}\b", text):
            yield f"keras-transformer {command}: no option {option}"
    if command == "train" and len(words) > 1 and words[1][:1] not in "-<":
        recipe = words[1]
        if recipe.endswith((".yaml", ".yml")):
            return
        if recipe not in shipped_recipes():
            yield f"keras-transformer train: no recipe {recipe!r}"
            return
        settings = [b for a, b in itertools.pairwise(words) if a == "--set"]
        try:
            load_recipe(recipe, overrides=settings)
        except ValueError as error:
            yield f"keras-transformer train: {error}"


HELP = {}


def help_of(command):
    """Returns the help of a command, or `None` if there is no such command."""
    from typer.testing import CliRunner

    from keras_transformer.cli.app import app

    if command not in HELP:
        words = [*(command or "").split(), "--help"]
        env = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
        result = CliRunner().invoke(app, words, env=env)
        HELP[command] = result.stdout if result.exit_code == 0 else None
    return HELP[command]


def write_corpus(folder):
    """Writes small corpora, plain and as `.gz`: `{train,val,test}.{en,de}`."""
    from keras_transformer.pipelines.sources.phrases import phrases

    splits = phrases(size=700, held_out=53)
    for name, pairs in zip(("train", "val", "test"), splits, strict=True):
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines).encode()
            (folder / f"{name}.{language}").write_bytes(text)
            (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(text))
