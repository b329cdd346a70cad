"""Model configurations: names, variables, adapters.

It tests how names become variables, which no public function shows.
"""

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.environment.config._config import ModelConfig, SandboxConfig, assign_var_names
from seer.environment.models._names import model_env_name, model_slug
from seer.errors import ConfigError, SeerError

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def refused(make: Any, field: str, *words: str) -> ConfigError:
    """The error of `make()`, which must name the field and all of the words."""
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field
    for word in words:
        assert word in str(caught.value)
    return caught.value


def sandbox(**fields: Any) -> SandboxConfig:
    return SandboxConfig(**fields)


def test_model_defaults() -> None:
    model = ModelConfig("google/gemma-2-9b")
    assert (model.revision, model.var_name, model.hidden, model.is_peft, model.base_model) == (
        "main",
        "model",
        False,
        False,
        None,
    )
    assert not model.is_local


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b/c", "-x/y", "a/../b", "org/na--me", "a" * 100, "x;y", "a/b\n"]
)
def test_model_names_that_are_no_hub_id_are_refused(name: str) -> None:
    refused(lambda: ModelConfig(name), "ModelConfig.name")


def test_a_folder_is_a_model_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(tmp_path / "m"), "./m", "m", "~/m"):
        assert ModelConfig(name).is_local
    assert ModelConfig(cast("str", tmp_path / "m")).name == str(tmp_path / "m")
    refused(lambda: ModelConfig("./missing"), "ModelConfig.name", "not an existing folder")
    refused(lambda: ModelConfig("./m", revision="v1"), "ModelConfig.revision", "no revisions")


@pytest.mark.parametrize("revision", ["", "-x", "a..b", "a b", None, "/x"])
def test_revisions_are_checked(revision: Any) -> None:
    refused(lambda: ModelConfig("a/b", revision=revision), "ModelConfig.revision")


@pytest.mark.parametrize("name", ["1x", "class", "a-b", "", "a b", None])
def test_variable_names_must_be_identifiers(name: Any) -> None:
    refused(lambda: ModelConfig("a/b", var_name=name), "ModelConfig.var_name")


def test_adapters_need_a_base_and_a_base_needs_an_adapter() -> None:
    assert ModelConfig("a/b", is_peft=True, base_model="c/d").base_model == "c/d"
    refused(lambda: ModelConfig("a/b", is_peft=True), "ModelConfig.base_model", "needed")
    refused(lambda: ModelConfig("a/b", base_model="c/d"), "ModelConfig.base_model", "is_peft")
    refused(
        lambda: ModelConfig("a/b", is_peft=True, base_model="no good"), "ModelConfig.base_model"
    )


@pytest.mark.parametrize("field", ["hidden", "is_peft"])
def test_flags_must_be_booleans(field: str) -> None:
    fields = cast("Any", {field: "yes"})
    refused(lambda: ModelConfig("a/b", **fields), f"ModelConfig.{field}", "True or False")


def test_model_variables_are_named_by_the_rule() -> None:
    assert model_env_name("google/gemma-2-9b") == "MODEL_GOOGLE_GEMMA_2_9B_PATH"
    assert model_env_name("meta-llama/Llama-2-7b") == "MODEL_META_LLAMA_LLAMA_2_7B_PATH"


def test_model_folders_are_named_by_the_rule(tmp_path: Path) -> None:
    assert model_slug("google/gemma-2-9b") == "google--gemma-2-9b"
    (tmp_path / "my model").mkdir()
    assert model_slug(str(tmp_path / "my model")) == "my_model"
    assert model_slug("/") == "model"


def test_models_whose_variables_collide_are_refused() -> None:
    models = [ModelConfig("a/b-c"), ModelConfig("a/b.c")]
    refused(lambda: sandbox(models=models), "SandboxConfig.models", "MODEL_A_B_C_PATH", "'a/b-c'")


def test_default_variable_names_are_numbered() -> None:
    models = [ModelConfig("a/a"), ModelConfig("a/b"), ModelConfig("a/c", var_name="probe")]
    assert assign_var_names(models) == ("model", "model_1", "probe")


def test_numbering_steps_over_names_given_explicitly() -> None:
    models = [
        ModelConfig("a/a"),
        ModelConfig("a/b", var_name="model_1"),
        ModelConfig("a/c"),
        ModelConfig("a/d"),
    ]
    assert assign_var_names(models) == ("model", "model_1", "model_2", "model_3")


def test_a_variable_name_given_twice_is_refused() -> None:
    models = [ModelConfig("a/a", var_name="m"), ModelConfig("a/b", var_name="m")]
    refused(lambda: sandbox(models=models), "ModelConfig.var_name", "'m'", "two models")


@given(_ANYTHING)
def test_any_model_name_is_accepted_or_refused_clearly(value: Any) -> None:
    try:
        name = ModelConfig(value).name
    except SeerError:
        return
    assert model_env_name(name).isidentifier()
    assert "/" not in model_slug(name)
