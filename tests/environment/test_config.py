"""Configurations: which values are accepted, and the error for each other value."""

import copy
import dataclasses
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.environment import ExecutionMode, ModelConfig, Sandbox, SandboxConfig, ScopedSandbox
from seer.errors import ConfigError
from seer.providers import GPUS


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


def test_defaults_are_those_of_the_api() -> None:
    config = SandboxConfig()
    assert config.gpu == "A100"
    assert config.execution_mode is ExecutionMode.NOTEBOOK
    assert (config.models, config.repos, config.python_packages, config.secrets) == ((), (), (), ())
    assert config.provider == "modal"
    assert config.network is None
    assert config.memory_bytes is None
    assert config.disk_bytes is None


def test_positional_arguments_follow_the_documented_order() -> None:
    config = SandboxConfig("H100", ExecutionMode.CLI, [ModelConfig("a/b")], [], ["numpy"])
    assert (config.gpu, config.models[0].name) == ("H100", "a/b")
    assert config.python_packages == ("numpy",)


def test_lists_are_copied_and_never_changed() -> None:
    packages = ["numpy"]
    environment = {"A": "1"}
    options = {"app": "x"}
    config = sandbox(python_packages=packages, env=environment, provider_options=options)
    packages.append("pandas")
    environment["B"] = "2"
    options["app"] = "y"
    assert config.python_packages == ("numpy",)
    assert dict(config.env) == {"A": "1"}
    assert config.provider_options == {"app": "x"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.gpu = "H100"  # pyright: ignore[reportAttributeAccessIssue]


def test_configs_can_be_compared_hashed_copied_and_pickled() -> None:
    config = sandbox(env={"A": "1"}, models=[ModelConfig("a/b")], memory="1GiB")
    same = sandbox(env={"A": "1"}, models=[ModelConfig("a/b")], memory=2**30)
    assert config == same
    assert hash(config) == hash(same)
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config, gpu=None).gpu is None
    assert "'A': '1'" in repr(config)


def test_frozen_mapping_has_no_way_to_change_it() -> None:
    mapping = sandbox(env={"a": "1"}).env
    assert (mapping["a"], list(mapping), len(mapping)) == ("1", ["a"], 1)
    assert not hasattr(mapping, "__setitem__")


# --- resources ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(GPUS))
def test_known_gpus_are_accepted(name: str) -> None:
    assert sandbox(gpu=name).gpu == name


def test_no_gpu_means_cpu() -> None:
    assert sandbox(gpu=None).gpu is None


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("a100", "A100"), ("A100 80GB", "A100-80GB"), ("RTX-4090", "RTX4090"), ("H10O", "H100")],
)
def test_unknown_gpu_gets_a_suggestion(wrong: str, near: str) -> None:
    refused(lambda: sandbox(gpu=wrong), "SandboxConfig.gpu", repr(wrong), f"mean {near!r}", "B200")


def test_unlike_any_gpu_gets_the_list_only() -> None:
    error = refused(lambda: sandbox(gpu="quantum"), "SandboxConfig.gpu", "Known:", "H200")
    assert "did you mean" not in str(error)


def test_gpu_with_a_count_says_how_to_write_it() -> None:
    refused(lambda: sandbox(gpu="H100:4"), "SandboxConfig.gpu", "gpu_count=4")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2", None])
def test_gpu_count_must_be_a_positive_whole_number(value: object) -> None:
    refused(lambda: sandbox(gpu_count=value), "SandboxConfig.gpu_count", repr(value))


@pytest.mark.parametrize("field", ["timeout", "idle_timeout", "start_timeout", "lease", "cpus"])
@pytest.mark.parametrize("value", [-1, 0, float("nan"), float("inf"), "10", True])
def test_times_must_be_finite_and_positive(field: str, value: object) -> None:
    refused(lambda: sandbox(**{field: value}), f"SandboxConfig.{field}", repr(value))


@pytest.mark.parametrize("field", ["start_timeout", "lease"])
def test_times_that_are_needed_cannot_be_none(field: str) -> None:
    refused(lambda: sandbox(**{field: None}), f"SandboxConfig.{field}")


@pytest.mark.parametrize(
    ("given_size", "size"),
    [(5, 5), ("16GiB", 2**34), ("1.5 MB", 1_500_000), ("2KiB", 2048), ("7B", 7), ("1TB", 10**12)],
)
def test_sizes_may_have_units(given_size: int | str, size: int) -> None:
    config = sandbox(memory=given_size, disk=given_size)
    assert (config.memory_bytes, config.disk_bytes) == (size, size)


@pytest.mark.parametrize("value", ["16", "lots", "16 gib", "-1GiB", 0, -5, 1.5, True, "0B", ""])
def test_sizes_that_are_none_are_refused(value: object) -> None:
    refused(lambda: sandbox(memory=value), "SandboxConfig.memory", repr(value)[:2])


# --- content ------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["models", "repos", "python_packages", "secrets", "local_files"])
@pytest.mark.parametrize("value", ["numpy", b"x", {"a": 1}, 7, None, {"numpy"}])
def test_a_list_is_wanted_where_a_list_is_wanted(field: str, value: object) -> None:
    refused(lambda: sandbox(**{field: value}), f"SandboxConfig.{field}", "list")


def test_members_of_the_wrong_type_are_named_by_position() -> None:
    models = [ModelConfig("a/b"), "c/d"]
    refused(lambda: sandbox(models=models), "SandboxConfig.models[1]", "'c/d'", "ModelConfig")
    refused(lambda: sandbox(python_packages=["a", 3]), "SandboxConfig.python_packages[1]", "int")


def test_execution_mode_must_be_a_member() -> None:
    refused(
        lambda: sandbox(execution_mode="notebook"), "SandboxConfig.execution_mode", "ExecutionMode"
    )


@pytest.mark.parametrize(
    "spec",
    ["numpy", "torch>=2,<3", "x[extra]==1.0; python_version>'3.8'", "p @ git+https://h/r@v1"],
)
def test_package_specs_in_pep_508_form_are_accepted(spec: str) -> None:
    assert sandbox(python_packages=[f" {spec} "]).python_packages == (spec,)


@pytest.mark.parametrize("spec", ["", "numpy=1", "-r file.txt", "a b", "--index-url=x", "./local"])
def test_package_specs_that_do_not_parse_are_refused(spec: str) -> None:
    refused(
        lambda: sandbox(python_packages=[spec]),
        "SandboxConfig.python_packages[0]",
        "does not parse",
    )


def test_a_bare_url_says_how_to_write_it() -> None:
    refused(
        lambda: sandbox(python_packages=["git+https://host/repo"]),
        "SandboxConfig.python_packages[0]",
        "name @ git+https",
    )


@pytest.mark.parametrize("spec", ["seer-interp", "Seer_Interp[all]", "seer_compat"])
def test_seer_itself_is_never_a_package(spec: str) -> None:
    refused(lambda: sandbox(python_packages=[spec]), "SandboxConfig.python_packages[0]", "never")


def test_another_project_of_seers_name_is_no_package() -> None:
    refused(
        lambda: sandbox(python_packages=["seer"]),
        "SandboxConfig.python_packages[0]",
        "another project",
    )


def test_credentials_in_a_package_url_are_refused_and_not_shown() -> None:
    error = refused(
        lambda: sandbox(python_packages=["a @ https://me:hunter22@host/a.whl"]),
        "SandboxConfig.python_packages[0]",
        "credentials",
    )
    assert "hunter22" not in str(error)
    assert "hunter22" not in repr(error.value)


@pytest.mark.parametrize("name", ["FFmpeg", "a", "git=1.0", "x;y", "-o"])
def test_system_packages_must_be_debian_names(name: str) -> None:
    refused(lambda: sandbox(system_packages=[name]), "SandboxConfig.system_packages[0]", repr(name))


@pytest.mark.parametrize("version", ["3.10", "2.7", "3", "latest", "3.11.2.1", 3.12])
def test_python_versions_that_cannot_work_are_refused(version: object) -> None:
    refused(lambda: sandbox(python_version=version), "SandboxConfig.python_version")


def test_python_versions_are_kept() -> None:
    assert sandbox(python_version="3.12", system_packages=["g++"]).python_version == "3.12"


def test_local_paths_take_three_forms(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("x")
    config = sandbox(
        local_files=[file, str(file), (file, "in/there.txt")], local_dirs=[(tmp_path, "/data")]
    )
    assert [path.target for path in config.files] == ["notes.txt", "notes.txt", "in/there.txt"]
    assert config.dirs == ((tmp_path, "/data"),)
    assert dataclasses.replace(config, gpu=None).files == config.files


def test_local_paths_that_cannot_be_copied_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("x")
    first = "SandboxConfig.local_files[0]"
    refused(
        lambda: sandbox(local_files=[tmp_path / "no"]),
        "SandboxConfig.local_files",
        "not an existing file",
    )
    refused(
        lambda: sandbox(local_dirs=[file]), "SandboxConfig.local_dirs", "not an existing folder"
    )
    refused(lambda: sandbox(local_files=[(file, "../x")]), first, "'..'")
    refused(lambda: sandbox(local_files=[(file, "/")]), first)
    refused(lambda: sandbox(local_files=[(file, "")]), first, "empty")
    refused(lambda: sandbox(local_files=[(file, "a", "b")]), first, "pair")
    refused(lambda: sandbox(local_files=[(3, "a")]), first, "path")


# --- surroundings -------------------------------------------------------------------------------


def test_env_names_and_values_are_checked() -> None:
    refused(lambda: sandbox(env={"1A": "x"}), "SandboxConfig.env", "'1A'")
    refused(lambda: sandbox(env={"A-B": "x"}), "SandboxConfig.env")
    refused(lambda: sandbox(env={3: "x"}), "SandboxConfig.env", "int")
    refused(lambda: sandbox(env=["A"]), "SandboxConfig.env", "mapping")
    error = refused(lambda: sandbox(env={"A": "hunter22\0"}), "SandboxConfig.env['A']", "NUL")
    assert "hunter22" not in str(error)
    refused(lambda: sandbox(env={"A": 1}), "SandboxConfig.env['A']", "string")


def test_a_secret_given_by_value_is_refused_and_not_shown() -> None:
    error = refused(
        lambda: sandbox(secrets=["hf_abcdefg"]), "SandboxConfig.secrets[0]", "environment variable"
    )
    assert "hf_abcdefg" not in str(error)
    refused(lambda: sandbox(secrets=["A", "A"]), "SandboxConfig.secrets", "twice")


def test_env_may_not_repeat_a_secret_or_a_models_variable() -> None:
    refused(lambda: sandbox(secrets=["A"], env={"A": "x"}), "SandboxConfig.env", "secret")
    refused(
        lambda: sandbox(models=[ModelConfig("a/b")], env={"MODEL_A_B_PATH": "x"}),
        "SandboxConfig.env",
        "model",
    )


@pytest.mark.parametrize("value", ["full", "none", "host", None])
def test_network_modes_are_kept(value: object) -> None:
    assert sandbox(network=value).network == value


def test_network_hosts_are_normalised() -> None:
    assert sandbox(network=["Data.Example.", "127.0.0.1"]).network == ("data.example", "127.0.0.1")
    assert sandbox(network=["*.Example.ORG."]).network == ("*.example.org",)
    assert sandbox(network=["*.xn--bcher-kva.example"]).network == ("*.xn--bcher-kva.example",)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "https://x.org",
            "x.org:443",
            "x.org/path",
            "",
            "a b",
            "-x.org",
            "x" * 260,
            "a..b",
            "x..",
        ),
        *(
            "*",
            "*.",
            "*.org",
            "*.*.x.org",
            "a.*.x.org",
            "**.x.org",
            "*x.org",
            "*.x.org:443",
            ".x.org",
        ),
        *(
            "*.10.0.0.1",
            "*.[::1]",
            "[::1]",
            "::1",
            "bücher.example",
            "*.bücher.example",
            "me@x.org",
        ),
        "a" * 64 + ".org",
    ],
)
def test_network_hosts_are_bare_names(host: str) -> None:
    refused(lambda: sandbox(network=[host]), "SandboxConfig.network[0]")


def test_network_as_a_single_host_is_refused() -> None:
    refused(lambda: sandbox(network="x.org"), "SandboxConfig.network", "list of host names")
    refused(lambda: sandbox(network=3), "SandboxConfig.network", "list")


def test_isolation_and_provider_are_checked() -> None:
    refused(lambda: sandbox(isolation="docker"), "SandboxConfig.isolation", "bubblewrap")
    refused(lambda: sandbox(provider="My Cloud"), "SandboxConfig.provider")
    refused(lambda: sandbox(provider=None), "SandboxConfig.provider", "string")


def test_provider_options_are_a_mapping_or_a_dataclass() -> None:
    @dataclass
    class Options:
        host: str

    assert sandbox(provider_options=Options("h")).provider_options == Options("h")
    assert isinstance(sandbox(provider_options={"a": 1}).provider_options, Mapping)
    refused(lambda: sandbox(provider_options="x"), "SandboxConfig.provider_options", "dataclass")
    refused(lambda: sandbox(provider_options=Options), "SandboxConfig.provider_options")


# --- anything at all ----------------------------------------------------------------------------

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
_FIELDS = [field.name for field in dataclasses.fields(SandboxConfig)]


@given(field=st.sampled_from(_FIELDS), value=_ANYTHING)
def test_a_value_is_accepted_or_refused_clearly(field: str, value: object) -> None:
    try:
        config = sandbox(**{field: value})
    except ConfigError as error:
        assert field in error.field or error.field.startswith("SandboxConfig")
        assert str(error)
    else:
        assert dataclasses.replace(config) == config or value != value


@pytest.mark.parametrize("kind", [Sandbox, ScopedSandbox])
def test_a_sandbox_is_made_from_a_config_and_not_from_a_mapping(kind: type[Sandbox]) -> None:
    given: Any = {"gpu": None}
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.config=.*: must be a SandboxConfig"):
        kind(given)
