"""The folder that a sandbox sees as a model: links, adapters, hidden models.

It makes views itself, because these cases need no machine.
"""

import asyncio
import errno
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seer.environment import ModelConfig
from seer.environment._cache import locked
from seer.environment.models import _view as _model_view
from seer.environment.models._blinding import Needles, card_names, name_parts, neutral_template
from seer.environment.models._fetch import skipped_patterns
from seer.environment.models._models import (
    PreparedModel,
    model_handles,
    read_aliases,
)
from seer.environment.models._provenance import fingerprint
from seer.environment.models._view import walk_model
from seer.environment.prepare._preparer import LocalPreparer
from seer.errors import ConfigError, ModelError
from seer.organisms import organism
from seer.providers._spec import Layout
from seer.providers.local._record import LocalRecord, MountRecord, machines_dir, write_record

NAME = "acme/secret-falcon-7b"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SEER_MODEL_ALIASES", raising=False)
    return tmp_path / "cache"


def write_weights(path: Path, metadata: dict[str, str] | None = None, tensor: str = "w") -> bytes:
    """Write a safetensors file; returns its tensor's bytes."""
    data = os.urandom(4096)
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    header[tensor] = {"dtype": "F32", "shape": [1024], "data_offsets": [0, 4096]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return data


def write_model(folder: Path, *, name: str = NAME, model_type: str = "llama") -> Path:
    """A model's folder as people publish them, with its name in many places."""
    folder.mkdir(parents=True)
    write_weights(folder / "model.safetensors", {"format": "pt"})
    files: dict[str, object] = {
        "config.json": {
            "_name_or_path": name,
            "_commit_hash": COMMIT,
            "model_type": model_type,
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 32,
            "auto_map": {"AutoModel": f"{name}--modeling.Model"},
            "text_config": {"_name_or_path": f"/home/me/{name}", "note": f"from {name.upper()}"},
        },
        "generation_config.json": {"eos_token_id": 0, "_from": f"see {name}"},
        "tokenizer_config.json": {
            "name_or_path": name,
            "tokenizer_file": f"/home/me/.cache/models--{name.replace('/', '--')}/tokenizer.json",
            "chat_template": "{{ messages }}",
        },
        "tokenizer.json": {"model": {"type": "BPE", "vocab": {"a": 0, "user": 1}, "merges": []}},
        "model.safetensors.index.json": {
            "metadata": {"total_size": 4096, "origin": name},
            "weight_map": {"w": "model.safetensors"},
        },
    }
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    (folder / "README.md").write_text(f"# {name}\n")
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (folder / "tokenizer.model").write_bytes(b"\x0a\x10model_prefix:" + name.encode() + b"\x00")
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / f"{name.rpartition('/')[2]}.png").write_bytes(b"picture")
    return folder


async def prepare(*models: ModelConfig) -> tuple[PreparedModel, ...]:
    return await LocalPreparer().models(models)


def all_bytes(folder: Path) -> bytes:
    """Every name and every byte below a folder."""
    parts = [str(p.relative_to(folder)).encode() + p.read_bytes() for p in _files(folder)]
    return b"\n".join(parts)


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


async def test_a_flat_folder_is_mounted_as_it_is(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "falcon")
    (model,) = await prepare(ModelConfig(str(folder)))
    assert model.host_path == folder
    assert model.handle.path == "/models/falcon"
    assert model.commit is None
    assert [(m.source, m.target, m.writable) for m in model.mounts] == [
        (folder, "/models/falcon", False)
    ]


async def test_links_become_real_files_without_a_copy(tmp_path: Path) -> None:
    blobs = write_model(tmp_path / "models--x" / "blobs")
    snapshot = tmp_path / "models--x" / "snapshots" / COMMIT
    (snapshot / "deep").mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(blobs / "model.safetensors")
    (snapshot / "deep" / "x.json").symlink_to(blobs / "config.json")
    (model,) = await prepare(ModelConfig(str(snapshot)))
    seen = model.host_path / "model.safetensors"
    assert not seen.is_symlink()
    assert seen.stat().st_ino == (blobs / "model.safetensors").stat().st_ino
    assert (model.host_path / "deep" / "x.json").read_bytes()
    assert model.host_path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("kind", ["file", "folder", "climbing", "blob"])
async def test_a_model_has_a_link_to_a_file_of_the_host(
    tmp_path: Path, kind: str, hidden: bool
) -> None:
    secrets = tmp_path / "ssh"
    secrets.mkdir()
    (secrets / "key.json").write_text('"secret"')
    folder = write_model(tmp_path / "models--x" / "snapshots" / COMMIT)
    if kind == "file":
        (folder / "vocab.json").symlink_to(secrets / "key.json")
    elif kind == "folder":
        (folder / "more").symlink_to(secrets)
    elif kind == "climbing":
        (folder / "vocab.json").symlink_to("../../../ssh/key.json")
    else:
        blobs = tmp_path / "models--x" / "blobs"
        blobs.mkdir()
        (blobs / "abc").symlink_to(secrets / "key.json")
        (folder / "vocab.json").symlink_to(blobs / "abc")
    with pytest.raises(ModelError, match="leads out of the model's folder"):
        await prepare(ModelConfig(str(folder), hidden=hidden))
    with pytest.raises(ModelError, match="leads out of the model's folder"):
        fingerprint(folder)


async def test_a_file_of_a_model_is_swapped_while_its_view_is_made(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    secret = tmp_path / "secret"
    secret.write_text('"secret"')
    files = [file for file in walk_model(folder) if file.name == "config.json"]
    (folder / "config.json").unlink()
    (folder / "config.json").hardlink_to(secret)
    with pytest.raises(ModelError, match="replaced"):
        files[0].read()
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic link"):
        files[0].read()


async def test_a_hidden_model_tells_its_name_in_no_byte(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "secret-falcon-7b")
    (model,) = await prepare(ModelConfig(str(folder), hidden=True))
    everything = all_bytes(model.host_path).lower()
    for word in (b"secret-falcon", b"acme", COMMIT.encode(), str(folder).encode(), b"/home/me"):
        assert word not in everything
    assert "falcon" not in str([(m.source, m.target) for m in model.mounts])
    assert model.handle.name == "model_0"
    assert model.handle.path == "/models/model_0"
    assert model.handle.env_name == "MODEL_MODEL_0_PATH"
    assert "falcon" not in repr(model.handle)


async def test_a_hidden_model_stays_the_model_it_is(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (model,) = await prepare(ModelConfig(str(folder), hidden=True))
    view = model.host_path
    assert {p.name for p in _files(view)} == {
        *("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"),
        *("model.safetensors.index.json", "model.safetensors", "tokenizer.model", "merges.txt"),
        "chat_template.jinja",
    }
    config = json.loads((view / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["hidden_size"] == 32
    assert "auto_map" not in config
    assert config["text_config"] == {"note": "from model_0"}
    index = json.loads((view / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {"w": "model.safetensors"}
    assert (view / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert len((view / "tokenizer.model").read_bytes()) == len(
        (folder / "tokenizer.model").read_bytes()
    )


async def test_hidden_weights_are_no_second_copy(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (model,) = await prepare(ModelConfig(str(folder), hidden=True))
    original = (folder / "model.safetensors").stat()
    assert (model.host_path / "model.safetensors").stat().st_ino == original.st_ino


async def test_a_telling_header_is_rewritten_in_a_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_model(tmp_path / "m")
    data = write_weights(folder / "model.safetensors", {"format": "pt", "base": NAME})
    before = (folder / "model.safetensors").read_bytes()
    (model,) = await prepare(ModelConfig(str(folder), hidden=True))
    copy = (model.host_path / "model.safetensors").read_bytes()
    assert NAME.encode() not in copy
    assert copy.endswith(data)
    assert len(copy) == len(before)
    length = int.from_bytes(copy[:8], "little")
    assert json.loads(copy[8 : 8 + length])["__metadata__"] == {"format": "pt"}
    assert (folder / "model.safetensors").read_bytes() == before
    assert "copied" in caplog.text


async def test_a_name_in_a_vocabulary_file_is_taken_out_but_tokens_stay(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    content = {"origin": NAME, "model": {"vocab": {"a": 0}, "merges": ["a b"]}}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (model,) = await prepare(ModelConfig(str(folder), hidden=True))
    seen = json.loads((model.host_path / "tokenizer.json").read_text())
    assert seen == {"origin": "model_0", "model": {"vocab": {"a": 0}, "merges": ["a b"]}}


async def test_names_that_are_part_of_the_architecture_stay(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", name="gpt2", model_type="gpt2")
    (model,) = await prepare(ModelConfig(str(folder), hidden=True))
    assert json.loads((model.host_path / "config.json").read_text())["model_type"] == "gpt2"


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("'You are Quagga, created by Acme Labs.'", "'You are model_0, created by model_0.'"),
        (
            "{{ 'system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face' }}",
            "{{ 'system\\nYou are a helpful AI assistant named model_0, trained by model_0' }}",
        ),
        ("You are Qwen2.5. Be brief.", "You are model_0. Be brief."),
        ("you are a helper made by acme labs<|end|>", "you are a helper made by model_0<|end|>"),
        ("Your name is quagga", "Your name is model_0"),
        ("I am the New Model 7B, built at Acme", "I am the model_0, built at model_0"),
        # Text that names no one stays as it is.
        ("You are a helpful AI assistant.", "You are a helpful AI assistant."),
        ("{% if tools %}Call Functions{% endif %}", "{% if tools %}Call Functions{% endif %}"),
        ("{{ raise_exception('Only User roles') }}", "{{ raise_exception('Only User roles') }}"),
    ],
)
def test_a_default_system_prompt_does_not_say_who_the_model_is(template: str, shown: str) -> None:
    assert neutral_template(template, "model_0") == shown


def test_the_parts_of_a_name_that_point_to_it() -> None:
    assert name_parts("acme-labs/Quagga-2-7b-chat") == {"acme", "quagga"}
    assert name_parts("AcmeLabs/QuaggaChat") == {"acmelabs", "quaggachat", "quagga"}
    assert name_parts("/home/someone/models/quagga_base") == {"quagga"}
    assert name_parts("a/b-instruct-7b") == set()
    assert Needles(["meta/llama-3"], {"llama"}).parts == {"meta"}


def test_a_models_card_tells_names_too() -> None:
    card = "---\nbase_model:\n- acme/quagga\nmodel-index:\n- name: Zorse-9b\n---\n# Zebroid 7B\n"
    assert card_names(card) == {"acme/quagga", "Zorse-9b", "zebroid"}


async def test_names_in_a_hidden_models_files_are_found_and_taken_out(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", name="acme-labs/quagga-7b")
    (folder / "README.md").write_text("---\nbase_model: wild/zorse-1b\n---\n# Zebroid\n")
    template = "{{ 'You are Quagga by Acme, a Zorse of Zebroid' }}"
    (folder / "chat_template.jinja").write_text(template)
    named = [{"name": "default", "template": template}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    (folder / "generation_config.json").write_text(json.dumps({"note": "made for Quagga2"}))
    (model,) = await prepare(ModelConfig(str(folder), hidden=True))
    everything = all_bytes(model.host_path).lower()
    for word in (b"quagga", b"acme", b"zorse", b"zebroid"):
        assert word not in everything
    assert {"quagga", "acme", "zorse", "zebroid"} <= set(model.origin.names)


def test_ordinary_words_are_no_needles() -> None:
    needles = Needles(["/home/me/user", "final"])
    assert not needles.in_text("a user says final")
    assert needles.in_text("at /home/me/user there")
    assert Needles([]).replace("text", "x") == "text"
    assert Needles([]).blank(b"text") == b"text"


def tell_in_a_tensor(folder: Path) -> None:
    write_weights(folder / "model.safetensors", tensor=f"{NAME}.w")


def keep_only_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def tell_in_a_file_name(folder: Path) -> None:
    write_weights(folder / "secret-falcon-7b.safetensors")


def write_garbage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"garbage")


def write_a_list(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]")


def leave_no_room_in_the_header(folder: Path) -> None:
    text = b'{"__metadata__":{"a":"b"},"w":{"shape":[' + b"1e1," * 50 + b"1]}}"
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def break_the_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def break_a_link(folder: Path) -> None:
    (folder / "x").symlink_to("nowhere")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (tell_in_a_tensor, "tensor"),
        (keep_only_a_pickle, "safetensors"),
        (tell_in_a_file_name, "name"),
        (write_garbage, "not a safetensors file"),
        (write_a_list, "not a safetensors file"),
        (leave_no_room_in_the_header, "cannot be rewritten"),
        (break_the_config, "not JSON"),
        (break_a_link, "broken link"),
    ],
)
async def test_what_cannot_be_hidden_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    folder = write_model(tmp_path / "m")
    spoil(folder)
    with pytest.raises(ModelError, match=words):
        await prepare(ModelConfig(str(folder), hidden=True))
    views = tmp_path / "cache" / "seer" / "views"
    assert not views.exists() or not [p for p in views.iterdir() if p.is_dir()]


async def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(ModelError, match="no files"):
        await prepare(ModelConfig(str(tmp_path / "m")))


async def test_a_folder_that_leads_back_into_itself_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "loop").symlink_to(folder)
    with pytest.raises(ModelError, match="nested too deeply"):
        await prepare(ModelConfig(str(folder)))


async def test_a_folder_that_vanished_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    config = ModelConfig(str(folder))
    folder.rename(tmp_path / "n")
    with pytest.raises(ModelError, match="is not a folder"):
        await prepare(config)


# --- adapters -----------------------------------------------------------------------------------


def write_adapter(folder: Path) -> Path:
    folder.mkdir()
    write_weights(folder / "adapter_model.safetensors", {"format": "pt"})
    content = {"base_model_name_or_path": NAME, "peft_type": "LORA", "r": 8}
    (folder / "adapter_config.json").write_text(json.dumps(content))
    (folder / "README.md").write_text(f"base: {NAME}")
    return folder


@pytest.mark.parametrize(
    ("hidden", "paths"),
    [
        (False, ("/models/adapter", "/models/base")),
        (True, ("/models/model_0", "/models/model_0_base")),
    ],
)
async def test_an_adapter_points_at_its_mounted_base(
    tmp_path: Path, hidden: bool, paths: tuple[str, str]
) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    base = write_model(tmp_path / "base")
    before = (adapter / "adapter_config.json").read_bytes()
    (model,) = await prepare(
        ModelConfig(str(adapter), is_peft=True, base_model=str(base), hidden=hidden)
    )
    assert (model.handle.path, model.handle.base_path) == paths
    assert tuple(mount.target for mount in model.mounts) == paths
    seen = json.loads((model.host_path / "adapter_config.json").read_text())
    assert seen["base_model_name_or_path"] == paths[1]
    assert seen["r"] == 8
    assert (adapter / "adapter_config.json").read_bytes() == before
    if hidden:
        for mount in model.mounts:
            assert b"secret-falcon" not in all_bytes(mount.source)


# --- making views -------------------------------------------------------------------------------


async def test_a_view_is_made_once_and_again_when_the_model_changes(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    config = ModelConfig(str(folder), hidden=True)
    (first,), (second,) = await asyncio.gather(prepare(config), prepare(config))
    assert first.host_path == second.host_path
    write_weights(folder / "new.safetensors")
    (third,) = await prepare(config)
    assert third.host_path != first.host_path
    assert (third.host_path / "new.safetensors").exists()


async def test_a_views_name_cannot_be_guessed_from_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "m")
    config = ModelConfig(str(folder), hidden=True)
    (first,) = await prepare(config)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    (second,) = await prepare(config)
    assert first.host_path.name != second.host_path.name


async def test_where_links_are_impossible_files_are_mounted_or_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another filesystem")

    blobs = write_model(tmp_path / "models--x" / "blobs")
    folder = tmp_path / "models--x" / "snapshots" / "m"
    folder.mkdir(parents=True)
    for file in _files(blobs):
        (folder / file.name).symlink_to(file)
    monkeypatch.setattr(os, "link", refuse)
    (model,) = await prepare(ModelConfig(str(folder)))
    binds = {mount.target: mount.source for mount in model.mounts[1:]}
    assert binds["/models/m/model.safetensors"] == blobs / "model.safetensors"
    assert (model.host_path / "model.safetensors").stat().st_size == 0
    # The original of a hidden model must not appear in a mount table, so it is copied.
    (hidden,) = await prepare(ModelConfig(str(folder), hidden=True))
    assert len(hidden.mounts) == 1
    assert (hidden.host_path / "model.safetensors").read_bytes() == (
        blobs / "model.safetensors"
    ).read_bytes()


async def test_an_organism_is_copied_where_links_are_impossible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "another user's")

    source = organism("secret").path
    monkeypatch.setattr(os, "link", refuse)
    (model,) = await prepare(ModelConfig(str(source)))
    assert len(model.mounts) == 1 and model.host_path != source
    weights = "adapter_model.safetensors"
    assert (model.host_path / weights).read_bytes() == (source / weights).read_bytes()


async def test_a_link_that_fails_for_another_reason_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    folder = write_model(tmp_path / "m")
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(ModelError, match="disk full"):
        await prepare(ModelConfig(str(folder), hidden=True))
    assert not [p for p in (tmp_path / "cache/seer/views").iterdir() if p.is_dir()]


async def test_old_views_of_deleted_models_are_forgotten(tmp_path: Path) -> None:
    old = write_model(tmp_path / "old")
    (gone,) = await prepare(ModelConfig(str(old), hidden=True))
    kept_source = write_model(tmp_path / "kept")
    (kept,) = await prepare(ModelConfig(str(kept_source), hidden=True))
    (old / "model.safetensors").unlink()
    for view in (gone.host_path, kept.host_path):
        os.utime(view, (0.0, 0.0))
    await prepare(ModelConfig(str(write_model(tmp_path / "third")), hidden=True))
    assert not gone.host_path.exists()
    assert kept.host_path.exists()


async def test_a_view_that_was_copied_or_is_in_use_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # The header names an origin, so the file of weights is a copy, which has only one link.
    source = write_model(tmp_path / "copied")
    write_weights(source / "model.safetensors", {"from": NAME})
    (copied,) = await prepare(ModelConfig(str(source), hidden=True))
    assert (copied.host_path / "model.safetensors").stat().st_nlink == 1
    mounted_source = write_model(tmp_path / "mounted")
    (mounted,) = await prepare(ModelConfig(str(mounted_source), hidden=True))
    asked_source = write_model(tmp_path / "asked")
    (asked,) = await prepare(ModelConfig(str(asked_source), hidden=True))
    for folder in (mounted_source, asked_source):
        (folder / "model.safetensors").unlink()
    for view in (copied, mounted, asked):
        os.utime(view.host_path, (0.0, 0.0))
    _write_machine(mounted)
    root = asked.host_path.parent
    draft = root / f"draft-{asked.host_path.name}-0123456789ab"
    draft.mkdir()
    async with locked(root / f"{asked.host_path.name}.lock"):
        await prepare(ModelConfig(str(write_model(tmp_path / "third")), hidden=True))
    for view in (copied, mounted, asked):
        assert view.host_path.exists()
    assert draft.exists()
    await prepare(ModelConfig(str(write_model(tmp_path / "fourth")), hidden=True))
    assert not asked.host_path.exists()
    assert not draft.exists()


def _write_machine(model: PreparedModel) -> None:
    """Write the record of a machine that has the model mounted."""
    folder = machines_dir() / "local-1"
    folder.mkdir()
    mounts = tuple(
        MountRecord(target=m.target, source=str(m.source), seen=m.target, writable=False)
        for m in model.mounts
    )
    record = LocalRecord(
        id="local-1",
        label="sandbox",
        note="",
        gpu=None,
        started_at=0.0,
        isolation="bubblewrap",
        lease=60.0,
        idle_timeout=None,
        uid=None,
        layout=Layout(workdir="/w", home="/h", tmp="/t", run="/r", models="/m", python="/p"),
        mounts=mounts,
    )
    write_record(folder, record)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's jails run as another user")
async def test_files_for_their_owners_eyes_only_are_copied_if_they_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "m")
    weights = folder / "model.safetensors"
    weights.chmod(0o600)
    for hidden in (False, True):
        (model,) = await prepare(ModelConfig(str(folder), hidden=hidden))
        seen = model.host_path / "model.safetensors"
        assert seen.read_bytes() == weights.read_bytes()
        assert seen.stat().st_mode & 0o777 == 0o644
    assert weights.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(_model_view, "_LARGEST_COPY", 100)
    with pytest.raises(ModelError, match=r"chmod -R a\+rX"):
        await prepare(ModelConfig(str(folder)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's jails run as another user")
async def test_a_closed_folder_is_not_mounted_as_it_is(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    folder.chmod(0o700)
    (model,) = await prepare(ModelConfig(str(folder)))
    assert model.host_path != folder
    assert model.host_path.stat().st_mode & 0o777 == 0o755


def test_weights_in_other_formats_are_not_downloaded_twice() -> None:
    both = skipped_patterns(["model.safetensors", "pytorch_model.bin"])
    assert "pytorch_model*.bin" in both
    assert "*.gguf" in both
    only_pickles = skipped_patterns(["pytorch_model.bin", "unet/x.safetensors"])
    assert "pytorch_model*.bin" not in only_pickles
    assert "*.h5" in only_pickles


# --- names and aliases --------------------------------------------------------------------------


def test_hidden_models_are_counted_and_folders_are_unique(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        (tmp_path / parent / "m").mkdir(parents=True)
    handles = model_handles(
        [
            ModelConfig("org/x", hidden=True),
            ModelConfig(str(tmp_path / "a" / "m")),
            ModelConfig(str(tmp_path / "b" / "m")),
            ModelConfig("org/y", hidden=True, is_peft=True, base_model="org/z"),
        ]
    )
    assert [handle.path for handle in handles] == [
        "/models/model_0",
        "/models/m",
        "/models/m-1",
        "/models/model_1",
    ]
    bases = [handle.base_path for handle in handles]
    assert bases == [None, None, None, "/models/model_1_base"]


async def test_an_alias_stands_in_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_model(tmp_path / "m")
    monkeypatch.setenv("SEER_MODEL_ALIASES", f"google/gemma-2-9b={folder}")
    (model,) = await prepare(ModelConfig("google/gemma-2-9b"))
    assert model.host_path == folder
    assert model.handle.path == "/models/google--gemma-2-9b"
    assert model.handle.env_name == "MODEL_GOOGLE_GEMMA_2_9B_PATH"
    assert [r.levelname for r in caplog.records if "instead of" in r.message] == ["WARNING"]


def test_aliases_are_parsed_and_checked() -> None:
    aliases = read_aliases({"SEER_MODEL_ALIASES": "a/b=/x, c/d = e/f ,"})
    assert aliases == {"a/b": "/x", "c/d": "e/f"}
    assert read_aliases({}) == {}
    for wrong in ("a/b", "=x", "a=", "a=b,a=c"):
        with pytest.raises(ConfigError, match="SEER_MODEL_ALIASES"):
            read_aliases({"SEER_MODEL_ALIASES": wrong})
