"""The reference page of commands, from their help texts."""

import collections
import inspect
import re

import typer

from keras_transformer.cli.app import COMMANDS, app, load_command
from keras_transformer.cli.command import COMMON_OPTIONS
from keras_transformer.saving.info import markdown_table

COMMON_NAMES = [each.name for each in COMMON_OPTIONS]
# MODEL, and an option without a short form, is described once if this many commands
# have it.
SHARED_BY = 2


def walk(commands, context, path=()):
    """Yields (path, command, context) of every visible command."""
    for name, child in commands.items():
        inner = typer.Context(child, parent=context, info_name=name)
        if hasattr(child, "commands"):
            yield from walk(child.commands, inner, (*path, name))
        elif not child.hidden:
            yield (*path, name), child, inner


def split_help(text):
    """Splits a help text into its paragraphs and the lines of its example."""
    paragraphs, _, example = inspect.cleandoc(text).partition("\b\n")
    return paragraphs.strip(), example.strip()


# Notes of typer on values, and their texts on the page.
RANGES = {
    r"x>=[01]": "",
    r"x>=(\S+)": r"At least \1.",
    r"(\S+)<=x<=(\S+)": r"\1 to \2.",
    "required": "Required.",
}


def parameter_row(names, text):
    """Returns the row of an argument or option, given its help record."""
    text, _, notes = text.removesuffix("]").partition("  [")
    default = ""
    for note in notes.split("; ") if notes else ():
        if note.startswith("default: "):
            default = f" Default: `{note.removeprefix('default: ')}`."
            continue
        pattern = next(each for each in RANGES if re.fullmatch(each, note))
        text = f"{text} {re.sub(pattern, RANGES[pattern], note)}".rstrip()
    names = re.sub("<(.*)>", lambda match: f"{{{match[1].replace('|', ',')}}}", names)
    return [f"`{names}`", text + default]


def command_section(path, command, context, shared):
    paragraphs, example = split_help(command.help)
    text = f"## {' '.join(path)}\n\n{paragraphs}\n\n"
    if example:
        text += f"```bash\n{example}\n```\n\n"
    rows = [row for row in own_rows(command, context) if row not in shared]
    if rows:
        text += option_table(rows)
    others = [
        row[0][1:-1].split()[0] for row in own_rows(command, context) if row in shared
    ]
    if others:
        link = "[Shared](#options-of-several-commands)"
        names = ", ".join(f"`{name}`" for name in others)
        text += f"\n{link}: {names}.\n"
    return text.rstrip("\n") + "\n"


def own_rows(command, context):
    """Returns the rows of a command, without those of the options of all commands."""
    return parameter_rows(
        command, context, lambda name: name not in ("help", *COMMON_NAMES)
    )


def parameter_rows(command, context, is_shown):
    records = [
        parameter.get_help_record(context)
        for parameter in command.get_params(context)
        if is_shown(parameter.name)
    ]
    return [parameter_row(*record) for record in records if record]


def option_table(rows):
    return markdown_table(["Argument or option", "Description"], rows)


def page():
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="keras-transformer")
    introduction = (
        "Every command with its options, as `keras-transformer COMMAND --help` prints "
        "them. `keras-transformer --version` prints "
        "versions, and `--install-completion` installs shell completion of commands, "
        "options, recipes and recipe keys. All commands have the same "
        "[exit codes](exit-codes.md)."
    )
    loaded = {name: load_command(name) for name in COMMANDS}
    commands = list(walk(loaded, context))
    _, train, inner = next(each for each in commands if each[0] == ("train",))
    common = (
        "## Options of all commands\n\n"
        "They stand after the name of the command, as in `keras-transformer evaluate "
        "--quiet`. `init`, `models`, `plot`, `info` and `compare` have no `--device`. "
        "Results go to standard output, everything else to standard error.\n\n"
    )
    common += option_table(
        parameter_rows(train, inner, lambda name: name in COMMON_NAMES)
    )
    counts = collections.Counter(
        tuple(row) for _, *each in commands for row in own_rows(*each)
    )
    shared = {}
    for row, count in counts.most_common():
        if count >= SHARED_BY and row[0].startswith(("`--", "`MODEL")):
            shared.setdefault(row[0], list(row))
    shared = [*shared.values()]
    several = f"## Options of several commands\n\n{option_table(shared)}"
    sections = [common, several, *(command_section(*each, shared) for each in commands)]
    contents = markdown_table(["Command", "Purpose"], map(contents_row, commands))
    return f"# Commands\n\n{introduction}\n\n{contents}\n" + "\n".join(sections)


def contents_row(command):
    path, described, _ = command
    purpose, _, _ = split_help(described.help)[0].partition("\n\n")
    return [f"[`{' '.join(path)}`](#{'-'.join(path)})", purpose]
