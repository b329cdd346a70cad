"""The page's own files are complete, plain, and can be joined into one file."""

import re

import pytest

from seer.viewer._assets import assets, bundle, stylesheet

MODULES = sorted(name for name in assets() if name.endswith(".js"))
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    r"|setTimeout\(['\"`]|DOMParser|srcdoc|createContextualFragment|javascript:(?! \")|cookie"
)


@pytest.mark.parametrize("name", MODULES)
def test_no_module_turns_text_into_markup_or_code(name: str) -> None:
    source = assets()[name][0].decode()
    assert not SINKS.search(source)
    namespaces = r"http://www\.w3\.org/(2000/svg|1998/Math/MathML)"
    assert "http://" not in re.sub(namespaces, "", source)
    assert "https://" not in source


@pytest.mark.parametrize("name", MODULES)
def test_modules_say_what_they_are(name: str) -> None:
    source = assets()[name][0].decode()
    assert source.startswith("// "), "a module says what it is"


def test_every_module_is_in_the_bundle_once() -> None:
    text = bundle()
    for name in MODULES:
        variable = "module_" + name.removesuffix(".js").replace("/", "_")
        assert text.count(f"const {variable} = (() =>") == 1, name
    assert not re.search(r"^(import|export) ", text, re.MULTILINE)


def test_styles_fetch_nothing() -> None:
    assert "url(" not in stylesheet() and "@import" not in stylesheet()
    assert "--accent" in stylesheet()
