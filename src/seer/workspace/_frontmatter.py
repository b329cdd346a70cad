"""Reads and writes the YAML front matter of a `SKILL.md`."""

import json
from collections.abc import Mapping
from typing import cast

import yaml

from seer.errors import ConfigError


def split_frontmatter(field: str, text: str) -> tuple[dict[str, str], str]:
    """Split a text into the scalar entries of its front matter, and the rest.

    Raises:
        ConfigError: The front matter does not end, or is not a YAML mapping.
    """
    lines = text.split("\n")
    if lines[0].strip() != "---":
        return {}, text
    end = next((i for i, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise ConfigError(field, lines[0], "the front matter of SKILL.md has no closing '---'")
    head = "\n".join(lines[1:end])
    try:
        loaded: object = yaml.safe_load(head)
    except yaml.YAMLError as error:
        raise ConfigError(
            field, head[:200], f"the front matter of SKILL.md is not valid YAML: {error}"
        ) from error
    if loaded is None:
        loaded = {}
    if not isinstance(loaded, dict):
        raise ConfigError(field, head[:200], "the front matter of SKILL.md is not a mapping")
    entries = cast("dict[object, object]", loaded)
    scalars = {str(k): str(v) for k, v in entries.items() if isinstance(v, str | int | float)}
    return scalars, "\n".join(lines[end + 1 :])


def with_frontmatter(meta: Mapping[str, str], body: str) -> str:
    """Put front matter before `body`. Values are written as JSON strings, which are valid YAML."""
    head = "\n".join(f"{key}: {json.dumps(value)}" for key, value in meta.items())
    return f"---\n{head}\n---\n\n{body.strip()}\n"
