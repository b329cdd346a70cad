"""`seer init`: create an experiment from the template beside this module."""

import re
import shlex
import shutil
from pathlib import Path

import click

from seer.console import say
from seer.errors import ConfigError

_TEMPLATE = Path(__file__).with_name("template")


@click.command(name="init", epilog="Example: seer init my-study && seer run my-study")
@click.argument("name")
def command(name: str) -> None:
    """Create an experiment in the folder NAME, ready to run, without a key or a GPU.

    `seer init .` creates it in this folder.
    """
    folder = create(Path(name))
    say(f"created {folder}/ with {', '.join(sorted(path.name for path in folder.iterdir()))}")
    say(f"run it: seer run {shlex.quote(str(folder))}")


def create(folder: Path) -> Path:
    """Write the template to `folder`.

    Raises:
        ConfigError: The name is invalid, or the folder is not empty.
    """
    # `.` and `..` have the name of the folder that they mean.
    name = folder.resolve().name if folder.name in ("", "..") else folder.name
    if not re.fullmatch(r"[\w][\w .-]*", name):
        raise ConfigError("NAME", str(folder), "use letters, digits, '-', '_' and '.'")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ConfigError("NAME", str(folder), "already exists and is not empty")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in _TEMPLATE.iterdir():
            if source.suffix in (".py", ".md", ".toml"):
                text = source.read_text(encoding="utf-8").replace("NAME", name)
                (folder / source.name).write_text(text, encoding="utf-8")
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            reason = f"cannot be written: {error.strerror}"
            raise ConfigError("NAME", str(folder), reason) from error
        raise
    return folder
