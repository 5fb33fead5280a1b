"""Imports in a source file, with their absolute names."""

import ast

from house import LIBRARY, functions, syntax_tree


def imports(name, path):
    """Yields (line, absolute dotted name) of every import, also inside functions.

    These include calls of `import_module` with a name that is a literal, or begins with
    one.
    """
    full = ".".join(filter(None, (LIBRARY, name)))
    package = full.split(".") if path.name == "__init__.py" else full.split(".")[:-1]
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            function = ast.unparse(node.func).rpartition(".")[2]
            parts = getattr(node.args[0], "values", node.args) or [None]
            literal = getattr(parts[0], "value", None)
            if function in ("import_module", "__import__") and isinstance(literal, str):
                yield node.lineno, literal


def lines_of_functions(path):
    """Returns the numbers of the lines inside functions."""
    return {
        line
        for _, node in functions(path)
        for line in range(node.body[0].lineno, node.end_lineno + 1)
    }
