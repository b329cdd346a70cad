"""Skills: read from folders and functions, written in the Agent Skills format."""

from pathlib import Path

import pytest

from seer.errors import ConfigError
from seer.workspace import Skill


def logit_lens(layer: int, *, top: int = 5) -> list[str]:
    """Read a layer's prediction.

    Use it when a model's early guesses matter.
    """
    return ["x"] * layer * top


def undocumented(x: int) -> int:
    return x


def test_a_folder_becomes_a_skill_with_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "references").mkdir()
    (tmp_path / "SKILL.md").write_text(
        "---\nname: steer-model\ndescription: >\n  Steer a model\n  by a vector\nx: [1]\n---\nDo."
    )
    (tmp_path / "references" / "more.md").write_text("More.")
    skill = Skill.from_dir(tmp_path)
    assert skill.name == "steer-model"
    assert skill.description.split() == ["Steer", "a", "model", "by", "a", "vector"]
    assert set(skill.files) == {"SKILL.md", "references/more.md"}


def test_a_function_becomes_a_skill_that_carries_its_source(tmp_path: Path) -> None:
    skill = Skill.from_function(logit_lens)
    assert skill.name == "logit-lens"
    assert skill.description == "Read a layer's prediction."
    text = skill.files["SKILL.md"].decode()
    assert "def logit_lens(layer: int, *, top: int=5) -> list[str]:" in text
    assert "Use it when a model's early guesses matter." in text
    assert b'return ["x"] * layer * top' in skill.files["scripts/logit_lens.py"]
    for path, content in skill.files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    assert Skill.from_dir(tmp_path) == skill


def test_source_is_parsed_and_never_executed() -> None:
    skill = Skill.from_source('"""Ends the world."""\nraise SystemExit\n', "doom")
    assert skill.description == "Ends the world."


def test_text_becomes_a_skill() -> None:
    skill = Skill.from_text("be-kind", description='Say: "yes"\nand more', body="# Kindness")
    assert "# Kindness" in skill.files["SKILL.md"].decode()
    assert 'description: "Say: \\"yes\\"\\nand more"' in skill.files["SKILL.md"].decode()


def test_what_a_skill_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no SKILL.md"):
        Skill.from_dir(tmp_path)
    (tmp_path / "SKILL.md").write_text("# no front matter")
    with pytest.raises(ConfigError, match="lacks name and description"):
        Skill.from_dir(tmp_path)
    (tmp_path / "SKILL.md").write_text("---\nname: x\n")
    with pytest.raises(ConfigError, match="no closing"):
        Skill.from_dir(tmp_path)
    (tmp_path / "SKILL.md").write_text("---\n- a\n---\n")
    with pytest.raises(ConfigError, match="not a mapping"):
        Skill.from_dir(tmp_path)
    (tmp_path / "SKILL.md").write_text("---\na: [\n---\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        Skill.from_dir(tmp_path)
    (tmp_path / "SKILL.md").write_text("---\n---\n")
    with pytest.raises(ConfigError, match="lacks"):
        Skill.from_dir(tmp_path)
    with pytest.raises(ConfigError, match="pass description="):
        Skill.from_function(undocumented)
    with pytest.raises(ConfigError, match="source cannot be read"):
        Skill.from_function(len)
    with pytest.raises(ConfigError, match="pass name="):
        Skill.from_source("x = 1")
    with pytest.raises(ConfigError, match="has no SKILL.md"):
        Skill(name="a", description="b", files={})


@pytest.mark.parametrize("name", ["Upper", "two--hyphens", "-a", "a_b", "x" * 65, "", "a/b"])
def test_names_outside_of_the_format_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="Skill.name="):
        Skill.from_text(name, description="d", body="b")


@pytest.mark.parametrize("description", ["", " \n", "x" * 1025])
def test_descriptions_outside_of_the_format_are_refused(description: str) -> None:
    with pytest.raises(ConfigError, match=r"Skill\.description="):
        Skill.from_text("a", description=description, body="b")


def test_markdown_with_front_matter_becomes_a_skill() -> None:
    skill = Skill.from_markdown("---\nname: be-kind\ndescription: How.\n---\nBe kind.\n")
    assert (skill.name, skill.description) == ("be-kind", "How.")
    with pytest.raises(ConfigError, match="lacks name"):
        Skill.from_markdown("---\ndescription: How.\n---\n")
