"""The parts of a remote machine, and where they come from."""

import os
from pathlib import Path

from tests.support.remote_contract._subject import MODEL, RemoteSubject, equal, expect


def models_are_downloaded_on_the_host(subject: RemoteSubject) -> None:
    tools = subject.connect()
    equal(tools.model_files(), ["config.json", "weights.bin"], "files of the model")
    cache = Path(os.environ["HF_HOME"])
    here = list(cache.rglob("weights.bin"))
    expect(not here, f"the weights passed through this host: {here}")


def a_model_of_this_host_is_sent(subject: RemoteSubject) -> None:
    path = subject.scoped.model_handles[1].path
    equal(subject.scoped.read_file(f"{path}/config.json"), b'{"model_type": "own"}', "its config")


def models_are_found_by_their_variables(subject: RemoteSubject) -> None:
    handle = subject.scoped.model_handles[0]
    equal(handle.name, MODEL, "the handle's name")
    said = subject.scoped.exec(f'ls "${handle.env_name}"').split()
    equal(said, ["config.json", "weights.bin"], "files of the model")


def packages_are_installed(subject: RemoteSubject) -> None:
    said = subject.scoped.exec_python("import numpy; print(numpy.arange(3).sum())")
    equal(said.strip(), "3", "a package")


def repositories_are_checked_out(subject: RemoteSubject) -> None:
    handle = subject.sandbox.repo_handles[0]
    equal(
        subject.sandbox.read_file(f"{handle.path}/hello.txt"),
        b"hello from the repository\n",
        "a file of the repository",
    )


CHECKS = (
    models_are_downloaded_on_the_host,
    a_model_of_this_host_is_sent,
    models_are_found_by_their_variables,
    packages_are_installed,
    repositories_are_checked_out,
)
