"""The product's own uses, on a remote machine."""

import json
import os
import subprocess
import sys

from seer.environment import Sandbox
from seer.errors import SandboxNotFoundError
from seer.execution import (
    ExecutionResult,
    create_cli_session,
    create_local_session,
    create_notebook_session,
)
from seer.workspace import Workspace
from tests.support.remote_contract._subject import SECRET, RemoteSubject, equal, expect

_ADOPT = """
import json, sys
from seer.environment import Sandbox
provider, sandbox_id = sys.argv[1:]
listed = [status.id for status in Sandbox.list(provider=provider)]
sandbox = Sandbox.from_id(sandbox_id, provider=provider)
said = sandbox.read_file("kept.txt").decode()
sandbox.terminate()
print(json.dumps([sandbox_id in listed, said]))
"""


def _text(result: ExecutionResult) -> str:
    expect(result.status == "ok", f"the cell ended as {result.status}: {result.text}")
    return result.text.strip()


def a_sandbox_runs_commands_python_and_files(subject: RemoteSubject) -> None:
    sandbox = subject.sandbox
    equal(sandbox.exec("echo $CONTRACT_PLAIN").strip(), "plain", "a variable")
    equal(sandbox.exec_python("print(6 * 7)").strip(), "42", "python")
    sandbox.write_file("notes/a.bin", bytes(range(256)))
    equal(sandbox.read_file("notes/a.bin"), bytes(range(256)), "a file")


def a_notebook_runs_in_the_sandbox(subject: RemoteSubject) -> None:
    session = create_notebook_session(subject.sandbox)
    try:
        session.exec("x = 20")
        equal(_text(session.exec("print(x + 1)")), "21", "the second cell")
    finally:
        session.close()


def a_shell_runs_in_the_sandbox(subject: RemoteSubject) -> None:
    session = create_cli_session(subject.sandbox)
    try:
        equal(_text(session.exec("cd / && pwd")), "/", "a folder")
    finally:
        session.close()


def a_person_can_call_what_is_served(subject: RemoteSubject) -> None:
    tools = subject.connect()
    before = len(tools.read_log())
    equal(tools.note(5), before + 1, "a call")


def arrays_travel_both_ways(subject: RemoteSubject) -> None:
    tools = subject.connect()
    values = tools.numbers(2_000_000)
    equal(values.shape, (2_000_000,), "the shape of 8 MB")
    equal(tools.total(values), float(values.sum()), "the sum of what was sent back")


def a_jail_of_this_host_can_call_what_is_served(subject: RemoteSubject) -> None:
    workspace = Workspace(libraries=[subject.library])
    folder = subject.folder / "session"
    session = create_local_session(workspace, workspace_dir=folder)
    try:
        said = _text(
            session.exec(
                "import contract_tools as t\nprint(t.total(t.numbers(500_000)) > 0, t.note(1) > 0)"
            )
        )
        equal(said, "True True", "calls from the jail")
    finally:
        session.close()


def a_jail_without_connections_can_call_what_is_served(subject: RemoteSubject) -> None:
    workspace = Workspace(libraries=[subject.library])
    folder = subject.folder / "landlock"
    session = create_local_session(workspace, workspace_dir=folder, isolation="landlock")
    try:
        said = _text(session.exec("import contract_tools as t\nprint(t.note(1) > 0)"))
        equal(said, "True", "a call from the jail")
    finally:
        session.close()


def a_session_in_one_sandbox_can_call_another(subject: RemoteSubject) -> None:
    session = create_notebook_session(subject.sandbox, Workspace(libraries=[subject.library]))
    try:
        said = _text(session.exec("import contract_tools as t\nprint(t.note(1) > 0)"))
        equal(said, "True", "a call from the other sandbox")
    finally:
        session.close()


def agents_see_no_way_to_the_host(subject: RemoteSubject) -> None:
    """It is neither in the machine nor in anything that a session gets."""
    seen = subject.sandbox.exec("env; cat /proc/mounts")
    for word in ("SSH_", "MODAL_", "RUNPOD_", "known_hosts"):
        expect(word not in seen, f"{word} is visible in the machine")
    for text in subject.library.files.values():
        expect(b"ssh" not in text.lower(), "the library tells how the machine is reached")


def secrets_reach_the_sandbox(subject: RemoteSubject) -> None:
    equal(subject.sandbox.exec(f"echo ${SECRET}").strip(), os.environ[SECRET], "the secret")


def a_snapshot_can_be_started_again(subject: RemoteSubject) -> None:
    subject.sandbox.write_file("in-snapshot.txt", "kept")
    snapshot = subject.sandbox.snapshot("for the contract")
    config = subject.config(execution_mode=subject.sandbox.config.execution_mode)
    with Sandbox.from_snapshot(snapshot, config) as again:
        equal(again.read_file("in-snapshot.txt"), b"kept", "a file of the snapshot")


def another_process_can_find_list_and_end_a_sandbox(subject: RemoteSubject) -> None:
    sandbox = Sandbox(subject.config(network="none", python_packages=["pip"]))
    sandbox.start()
    try:
        sandbox.write_file("kept.txt", "from the first process")
        sandbox_id = sandbox.detach()
        done = subprocess.run(
            [sys.executable, "-c", _ADOPT, subject.provider, sandbox_id],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        expect(done.returncode == 0, f"the other process failed: {done.stderr}")
        equal(json.loads(done.stdout.splitlines()[-1]), [True, "from the first process"], "found")
        try:
            Sandbox.from_id(sandbox_id, provider=subject.provider)
        except SandboxNotFoundError as error:
            expect("terminated" in str(error), f"the error says how it ended: {error}")
        else:
            raise AssertionError("the sandbox was ended, and can still be found")
    finally:
        sandbox.terminate()


CHECKS = (
    a_sandbox_runs_commands_python_and_files,
    a_notebook_runs_in_the_sandbox,
    a_shell_runs_in_the_sandbox,
    a_person_can_call_what_is_served,
    arrays_travel_both_ways,
    a_jail_of_this_host_can_call_what_is_served,
    a_jail_without_connections_can_call_what_is_served,
    a_session_in_one_sandbox_can_call_another,
    agents_see_no_way_to_the_host,
    secrets_reach_the_sandbox,
    a_snapshot_can_be_started_again,
    another_process_can_find_list_and_end_a_sandbox,
)
