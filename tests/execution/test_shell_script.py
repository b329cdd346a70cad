"""The script that carries a shell's state to the next command, run by this machine's bash."""

import subprocess
from pathlib import Path

import pytest

import seer.execution

BASH = ("bash", "--noprofile", "--norc")
SCRIPT = Path(seer.execution.__file__).parent / "_inside" / "shell.sh"


class Shell:
    """Runs commands as a cli session does."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.folder = folder

    def __call__(self, command: str, *, keep: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BASH, "-c", SCRIPT.read_text(), "bash", self.state, str(int(keep)), command],
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=20,
            check=False,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_folder_and_variables_last(shell: Shell) -> None:
    shell("mkdir 'a b'; cd 'a b'; export SHARED=$'two\\nlines'; plain='x  y'")
    done = shell('basename "$PWD"; echo "$plain"; bash -c \'echo "$SHARED"\'')
    assert done.stdout == "a b\nx  y\ntwo\nlines\n"


def test_arrays_functions_aliases_options_and_umask_last(shell: Shell) -> None:
    shell(
        "list=(1 'two words' 3); declare -A map=([k]=v); f() { echo \"f $1\"; }; "
        "alias hi='echo aliased'; set -o pipefail; shopt -s nullglob; umask 027"
    )
    done = shell('echo "${list[1]}" ${map[k]}; f x; hi; shopt nullglob; set -o | grep pipef; umask')
    assert done.stdout.split("\n")[:3] == ["two words v", "f x", "aliased"]
    assert "nullglob       \ton" in done.stdout
    assert "pipefail       \ton" in done.stdout
    assert "0027" in done.stdout


def test_what_was_unset_stays_unset(shell: Shell) -> None:
    shell("a=1; f() { :; }")
    shell("unset a; unset -f f")
    done = shell('echo "[$a]"; type f')
    assert done.stdout == "[]\n"
    assert done.returncode == 1


def test_exit_codes_come_through_and_state_survives_exit(shell: Shell) -> None:
    done = shell("before=1; exit 7")
    assert done.returncode == 7
    assert shell("echo $before; false").stdout == "1\n"
    assert shell("false").returncode == 1


def test_errexit_does_not_lock_the_session_up(shell: Shell) -> None:
    assert shell("set -e; false; echo unreachable").stdout == ""
    assert shell("echo alive").stdout == "alive\n"


def test_a_command_without_keep_changes_nothing(shell: Shell) -> None:
    shell("a=1")
    assert shell("echo $a; a=2", keep=False).stdout == "1\n"
    assert shell("echo $a").stdout == "1\n"


def test_positional_parameters_are_empty_and_errors_name_bash(shell: Shell) -> None:
    assert shell('echo "$#"').stdout == "0\n"
    assert shell("cd /nonexistent").stderr.startswith("bash: line ")


def test_readonly_variables_of_bash_do_no_harm(shell: Shell) -> None:
    shell("readonly mine=1; other=2")
    done = shell("echo $other")
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.parametrize("state", ["", "syntax ( error", "exit 3"])
def test_a_broken_state_is_the_agents_own_problem(shell: Shell, state: str) -> None:
    shell.state.write_text(state)
    done = shell("echo on")
    assert done.stdout == ("" if state == "exit 3" else "on\n")
