"""The files that an installation writes to site-packages."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# As in the command, `import keras_transformer` then does not import Keras, for speed.
WITHOUT_KERAS = "import sys; sys.argv[0] = 'keras-transformer'"


def test_messages_about_missing_packages_name_an_extra():
    """Only errors.py installs the package. Extras passed to it are in setup.py."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    extras = set(re.findall(r'^        "([\w-]+)": ', setup, re.MULTILINE))
    named, others = set(), []
    for folder in ("keras_transformer", "pipelines"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            calls = r"(?:install_hint|require_extra)\(['\"]([\w-]+)"
            named.update(re.findall(calls, text))
            installs = re.search(r"""pip install ["']?(?:\.|keras)""", text)
            if installs and path.name != "errors.py":
                others.append(path)
    assert {"serve", "ctranslate2", "apache-beam", "parse", "gpu"} <= named <= extras
    assert others == []


@pytest.fixture(scope="module")
def site_packages(tmp_path_factory):
    """Folder with the package as `setup.py` installs it."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("site-packages")
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_installation_contains_every_source_file(site_packages):
    expected = set()
    for folder in ("keras_transformer", "pipelines"):
        prefix = pathlib.PurePath("keras_transformer" if folder == "pipelines" else "")
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in (".pyc", ".md"):
                expected.add(prefix / path.relative_to(ROOT))
    installed = {
        pathlib.PurePath(path.relative_to(site_packages))
        for path in site_packages.rglob("*")
        if path.is_file()
    }
    package = pathlib.PurePath("keras_transformer")
    assert package / "pipelines" / "sources" / "phrases.py" in installed
    assert package / "recipes" / "phrases.yaml" in installed
    assert sorted(map(str, expected - installed)) == []


def test_a_clone_works_as_the_current_folder():
    """Python prefers the package in the current folder to the installed one."""
    code = (
        f"{WITHOUT_KERAS}; sys.meta_path[:] = [each for each in sys.meta_path"
        " if 'Editable' not in str(each)]; from importlib.util import find_spec;"
        " print(find_spec('keras_transformer.pipelines').origin)"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert pathlib.Path(found.stdout.decode().strip()).parent == ROOT / "pipelines"


def test_installation_has_one_top_level_package(site_packages):
    assert [path.name for path in site_packages.iterdir()] == ["keras_transformer"]


def test_installed_package_runs_without_the_source_folder(site_packages):
    # `find_spec` locates the pipelines. Importing them would load TensorFlow.
    code = (
        f"{WITHOUT_KERAS}; sys.path.insert(0, sys.argv[1]); "
        "from importlib.util import find_spec; "
        "from keras_transformer.recipes import packaged_recipes; "
        "print(find_spec('keras_transformer.pipelines').origin); "
        "print(*packaged_recipes())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(site_packages)],
        cwd=site_packages,
        capture_output=True,
        text=True,
        check=True,
    )
    file, recipes = result.stdout.splitlines()
    assert pathlib.Path(file).is_relative_to(site_packages)
    packaged = (ROOT / "keras_transformer" / "recipes").glob("*.yaml")
    assert set(recipes.split()) == {path.stem for path in packaged}
