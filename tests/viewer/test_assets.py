"""The page's own files are complete, plain, and can be joined into one file."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from seer.runs import RunRecord, new_run_id
from seer.viewer import share

STATIC = Path(str(files("seer.viewer") / "static"))
MODULES = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js"))
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    r"|setTimeout\(['\"`]|DOMParser|srcdoc|createContextualFragment|javascript:(?! \")|cookie"
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shared run, which holds all scripts and styles."""
    folder = tmp_path_factory.mktemp("shared")
    record = RunRecord.create(folder, new_run_id(), meta={"task": "look"})
    record.close("completed")
    return share(record.folder, folder / "run.html").read_text()


@pytest.mark.parametrize("name", MODULES)
def test_no_module_turns_text_into_markup_or_code(name: str) -> None:
    source = (STATIC / name).read_text()
    assert not SINKS.search(source)
    namespaces = r"http://www\.w3\.org/(2000/svg|1998/Math/MathML)"
    assert "http://" not in re.sub(namespaces, "", source)
    assert "https://" not in source


@pytest.mark.parametrize("name", MODULES)
def test_modules_say_what_they_are(name: str) -> None:
    source = (STATIC / name).read_text()
    assert source.startswith("// "), "a module says what it is"


def test_every_module_is_in_a_shared_run_once(shared: str) -> None:
    assert MODULES
    for name in MODULES:
        variable = "module_" + name.removesuffix(".js").replace("/", "_")
        assert shared.count(f"const {variable} = (() =>") == 1, name
    assert not re.search(r"^(import|export) ", shared, re.MULTILINE)


def test_styles_fetch_nothing(shared: str) -> None:
    styles = "".join(re.findall(r"<style[^>]*>(.*?)</style>", shared, re.DOTALL))
    assert "url(" not in styles and "@import" not in styles
    assert "--accent" in styles
