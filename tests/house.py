"""Measures the source: size, long signatures and functions, repeated names.

    python tests/house.py [ROOT ...]

Prints a table with a column per project root (default: this project).
`test_rules.py` uses the same measures.
"""

import ast
import builtins
import collections
import io
import pathlib
import sys
import tokenize

LIBRARY = "keras_transformer"
MAX_LINES = 600
MAX_PARAMETERS = 12
MAX_FUNCTION_LINES = 60
# A call, dict or other piece of code that names at least this many of the model's
# constructor arguments counts as a list of them.
MANY_ARGUMENTS = 6

# Modules that implement the paper's model and its search.
CORE_MODULES = (
    "layers",
    "transformer",
    "training.losses",
    "decoding.beam_search",
    "decoding.cache",
    "decoding.incremental",
    "decoding.loop",
    "decoding.options",
    "decoding.search",
    "decoding.top_k",
)
# Modules that belong at the top of the package.
TOP = ("", "arguments", "errors", "files", "presets", "transformer")


def source_files(root):
    """Yields (dotted name below the package, path) of each module of the library."""
    for folder, prefix in ((root / LIBRARY, ()), (root / "pipelines", ("pipelines",))):
        for path in sorted(folder.rglob("*.py")):
            parts = (*prefix, *path.relative_to(folder).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts = parts[:-1]
            yield ".".join(parts), path


def syntax_tree(path):
    with tokenize.open(path) as file:
        return ast.parse(file.read(), str(path))


def is_within(name, modules):
    return any(name == module or name.startswith(module + ".") for module in modules)


def count_lines(path):
    return len(path.read_bytes().splitlines())


def docstring_lines(node):
    """Returns the line numbers of the docstring of a module, class, or function."""
    if ast.get_docstring(node, clean=False) is None:
        return set()
    return set(range(node.body[0].lineno, node.body[0].end_lineno + 1))


def count_code_lines(path):
    """Counts the lines except docstrings, comments, blank lines and imports."""
    text = path.read_text(encoding="utf-8")
    skipped = {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT),
        *(tokenize.DEDENT, tokenize.ENDMARKER),
    }
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            lines -= docstring_lines(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def functions(path):
    """Yields (qualified name, node) of each function and method, also nested ones."""

    def walk(node, names):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield ".".join([*names, child.name]), child
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from walk(child, [*names, child.name])
            else:
                yield from walk(child, names)

    yield from walk(syntax_tree(path), [])


def parameters(node):
    """Returns the parameters of a function, without `self`, `*args` and `**kwargs`."""
    arguments = node.args
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [each for each in found if each.arg not in ("self", "cls")]


def is_command(name, node):
    """Returns whether a function of cli/ is a command: all parameters are annotated."""
    found = parameters(node)
    annotated = bool(found) and all(each.annotation for each in found)
    return is_within(name, ["cli"]) and annotated


def is_model_constructor(name, node):
    """Returns whether a function is the constructor of a layer or of the model."""
    return is_within(name, ["layers", "transformer"]) and node.name == "__init__"


def long_signatures(root, commands=False):
    """Yields functions with more than `MAX_PARAMETERS` parameters.

    Constructors of layers and of the model are exempt, and so are commands unless
    `commands` is true.
    """
    for name, path in source_files(root):
        for function, node in functions(path):
            number = len(parameters(node))
            if (
                number > MAX_PARAMETERS
                and (commands or not is_command(name, node))
                and not is_model_constructor(name, node)
            ):
                yield f"{path}:{node.lineno} {function}: {number} parameters"


def long_functions(root, commands=False):
    """Yields functions with more than `MAX_FUNCTION_LINES` lines besides docstrings.

    The signature of a command counts only if `commands` is true.
    """
    for name, path in source_files(root):
        for function, node in functions(path):
            body_only = not commands and is_command(name, node)
            start = node.body[0].lineno if body_only else node.lineno
            number = node.end_lineno - start + 1 - len(docstring_lines(node))
            if number > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno} {function}: {number} lines"


def long_files(root):
    for folder in (LIBRARY, "pipelines", "tests", "benchmarks"):
        for path in sorted((root / folder).rglob("*.py")):
            lines = count_lines(path)
            if lines > MAX_LINES:
                yield f"{path}: {lines} lines"


def defined_names(tree):
    """Yields the names of the functions, classes and variables of a module."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = getattr(node, "targets", None) or [node.target]
            for target in targets:
                for each in ast.walk(target):
                    if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                        yield each.id


def repeated_names(root):
    """Yields public names that several modules define, except `logger`.

    A command's function, which no module imports, may have another function's name.
    """
    places = collections.defaultdict(set)
    for name, path in source_files(root):
        for defined in defined_names(syntax_tree(path)):
            if not defined.startswith("_") and defined != "logger":
                places[defined].add(name)
    for defined, modules in sorted(places.items()):
        modules.discard(f"cli.{defined}")
        if len(modules) > 1:
            yield f"{defined}: {', '.join(sorted(modules))}"


def repeated_definitions(root):
    """Yields names of functions and classes, public or not, that modules repeat."""
    places = collections.Counter()
    for _, path in source_files(root):
        body = syntax_tree(path).body
        kinds = ast.FunctionDef | ast.ClassDef
        places.update({each.name for each in body if isinstance(each, kinds)})
    yield from (name for name in places if places[name] > 1 and name[:2] != "__")


def error_classes(root):
    """Yields (module, path, node) of each class that is an exception."""
    known = {
        name
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    classes = [
        (name, path, node)
        for name, path in source_files(root)
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.ClassDef)
    ]
    number = 0
    while len(known) != number:
        number = len(known)
        for _, _, node in classes:
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if bases & known:
                known.add(node.name)
    for name, path, node in classes:
        if node.name in known:
            yield name, path, node


def model_argument_places(root):
    """Yields places that name at least `MANY_ARGUMENTS` of the model's arguments."""
    tree = syntax_tree(root / LIBRARY / "transformer.py")
    wanted = {
        each.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        for each in parameters(node)
    }
    for _, path in source_files(root):
        for node in ast.walk(syntax_tree(path)):
            for names in _lists_of_names(node):
                if len(wanted & set(names)) >= MANY_ARGUMENTS:
                    yield f"{path}:{node.lineno}"


def _lists_of_names(node):
    """Yields lists of names in a node, e.g. its parameters, keywords, or dict keys."""
    if isinstance(node, ast.FunctionDef):
        yield [each.arg for each in parameters(node)]
        targets = (
            each.targets[0] for each in node.body if isinstance(each, ast.Assign)
        )
        yield [each.attr for each in targets if isinstance(each, ast.Attribute)]
    elif isinstance(node, ast.Call):
        yield [each.arg for each in node.keywords]
    elif isinstance(node, ast.Dict):
        yield [getattr(key, "value", None) for key in node.keys]
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        yield [getattr(each, "value", None) for each in node.elts]
    elif isinstance(node, ast.ClassDef):
        fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
        yield [getattr(each.target, "id", None) for each in fields]


def stack_loops(root):
    """Yields `for` loops over an encoder's or decoder's layers, except in `build`."""
    for name, path in source_files(root):
        if not is_within(name, ["layers", "decoding", "transformer"]):
            continue
        for function, node in functions(path):
            if node.name == "build":
                continue
            for each in ast.walk(node):
                if isinstance(each, ast.For) and ".layers" in ast.unparse(each.iter):
                    yield f"{path}:{each.lineno} {function}"


def count(items):
    return sum(1 for _ in items)


def measures(root):
    """Returns {description: number} for the project at `root`."""
    modules = list(source_files(root))
    lines = {name: count_lines(path) for name, path in modules}
    loose = [
        name
        for name in lines
        if "." not in name and name not in TOP and not name.startswith("_")
        if (root / LIBRARY / f"{name}.py").exists()
    ]
    return {
        "files": len(modules),
        "lines": sum(lines.values()),
        "lines of code": sum(count_code_lines(path) for _, path in modules),
        "lines of layers/": sum(
            number for name, number in lines.items() if is_within(name, ["layers"])
        ),
        "lines of numerics/": sum(
            number for name, number in lines.items() if is_within(name, ["numerics"])
        ),
        "lines of model and search": sum(
            number for name, number in lines.items() if is_within(name, CORE_MODULES)
        ),
        "functions with too many parameters": count(long_signatures(root, True)),
        "functions with too many parameters, except commands": count(
            long_signatures(root)
        ),
        "functions that are too long": count(long_functions(root, True)),
        "functions that are too long, counting only a command's body": count(
            long_functions(root)
        ),
        "places that list the model's arguments": count(model_argument_places(root)),
        "loops over a stack": count(stack_loops(root)),
        "functions and classes of the same name": count(repeated_definitions(root)),
        "public names defined in several modules": count(repeated_names(root)),
        "unexpected top-level modules": len(loose),
        "files with error classes": len({path for _, path, _ in error_classes(root)}),
    }


def main(roots):
    table = [measures(root) for root in roots]
    width = max(map(len, table[0]))
    for what in table[0]:
        print(f"{what:{width}}", *(f"{column[what]:10,}" for column in table))


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parents[1]
    main([pathlib.Path(each) for each in sys.argv[1:]] or [here])
