"""Checks of reading and writing files."""

import asyncio
import errno
import hashlib
import os

from seer.errors import RemoteFileError
from seer.testing.provider_contract._subject import (
    Subject,
    checks_in,
    equal,
    expect,
    python,
    raises,
    sh,
)

_ODD_NAMES = (
    "with space",
    "new\nline",
    "tab\tand 'quotes\"",
    "ünïcødé-→-名前",
    "not-utf8-\udcff\udc80",
    "-rf",
    "$(touch oops)",
    "...",
    "x" * 255,
)


async def files_come_back_as_they_were_written(subject: Subject) -> None:
    machine = await subject.machine()
    data = bytes(range(256)) * 1000
    await machine.write_file("round/trip.bin", data)
    expect(await machine.read_file("round/trip.bin") == data, "the same bytes")
    digest = (await sh(machine, "sha256sum < round/trip.bin")).stdout.split()[0].decode()
    equal(digest, hashlib.sha256(data).hexdigest(), "what a command reads")


async def what_a_command_wrote_can_be_read(subject: Subject) -> None:
    machine = await subject.machine()
    await sh(machine, "printf 'from a command' > made-inside")
    equal(await machine.read_file("made-inside"), b"from a command", "content")


async def empty_files_are_files(subject: Subject) -> None:
    machine = await subject.machine()
    await machine.write_file("empty", b"")
    equal(await machine.read_file("empty"), b"", "content")
    equal((await machine.stat("empty")).size, 0, "size")


async def large_files_arrive_whole(subject: Subject) -> None:
    machine = await subject.machine()
    block = os.urandom(1 << 20)
    data = b"".join(i.to_bytes(4, "big") + block[4:] for i in range(subject.large >> 20))
    await machine.write_file("large.bin", data)
    expect(await machine.read_file("large.bin") == data, "the same bytes")
    await machine.remove("large.bin")


async def odd_names_work_everywhere(subject: Subject) -> None:
    machine = await subject.machine()
    await machine.make_dir("odd")
    for name in _ODD_NAMES:
        await machine.write_file(f"odd/{name}", name.encode("utf-8", "surrogateescape"))
        read = await machine.read_file(f"odd/{name}")
        equal(read, name.encode("utf-8", "surrogateescape"), f"content of {name!r}")
        equal((await machine.stat(f"odd/{name}")).name, name, "name in stat")
    listed = {status.name for status in await machine.list_dir("odd")}
    equal(listed, set(_ODD_NAMES), "names in the listing")
    for name in _ODD_NAMES:
        await machine.remove(f"odd/{name}")
    equal(await machine.list_dir("odd"), [], "nothing is left")


async def parts_of_a_file_can_be_read(subject: Subject) -> None:
    machine = await subject.machine()
    await machine.write_file("parts", b"0123456789")
    equal(await machine.read_file("parts", offset=3, length=4), b"3456", "a part")
    equal(await machine.read_file("parts", offset=8), b"89", "the rest")
    equal(await machine.read_file("parts", offset=8, length=100), b"89", "past the end")
    equal(await machine.read_file("parts", offset=100), b"", "beyond the end")
    equal(await machine.read_file("parts", length=0), b"", "nothing")


async def appending_keeps_what_was_there(subject: Subject) -> None:
    machine = await subject.machine()
    for part in (b"one ", b"two ", b"three"):
        await machine.write_file("appended", part, append=True)
    equal(await machine.read_file("appended"), b"one two three", "content")


async def modes_are_kept(subject: Subject) -> None:
    machine = await subject.machine()
    await machine.write_file("script.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    equal((await machine.stat("script.sh")).mode, 0o755, "mode")
    result = await machine.exec([f"{machine.layout.workdir}/script.sh"])
    equal(result.stdout, b"ran\n", "a script that was written can be run")


async def replacing_a_file_is_atomic(subject: Subject) -> None:
    machine = await subject.machine()
    versions = [bytes([letter]) * 400_000 for letter in b"ab"]
    await machine.write_file("atomic", versions[0])

    async def rewrite() -> None:
        for turn in range(10):
            await machine.write_file("atomic", versions[turn % 2])

    writing = asyncio.create_task(rewrite())
    while not writing.done():
        expect(await machine.read_file("atomic") in versions, "a reader saw a partly written file")
    await writing
    names = [status.name for status in await machine.list_dir(".")]
    expect(not any(name.startswith(".seer-") for name in names), f"a draft was left: {names}")


async def a_failed_write_leaves_the_old_content(subject: Subject) -> None:
    async with subject.fresh() as machine:
        await machine.write_file("folder/kept", b"old")
        # The name is too long, so the write fails in the machine after data was sent.
        error = await raises(
            RemoteFileError,
            machine.write_file("folder/" + "x" * 300, b"y" * 5_000_000),
            "long name",
        )
        equal(error.errno, errno.ENAMETOOLONG, "errno")
        error = await raises(RemoteFileError, machine.write_file("folder", b"new"), "a folder")
        equal(error.errno, errno.EISDIR, "errno")
        error = await raises(
            RemoteFileError, machine.write_file("folder/kept/below", b"new"), "below a file"
        )
        equal(error.errno, errno.ENOTDIR, "errno")
        equal(await machine.read_file("folder/kept"), b"old", "content")
        equal(len(await machine.list_dir("folder")), 1, "files in the folder")


async def missing_files_are_errors_with_errno(subject: Subject) -> None:
    machine = await subject.machine()
    for attempt in (
        machine.read_file("no/such"),
        machine.stat("no/such"),
        machine.list_dir("no/such"),
        machine.remove("no/such"),
    ):
        error = await raises(RemoteFileError, attempt, "a missing file")
        equal(error.errno, errno.ENOENT, "errno")
        expect(str(error.filename).endswith("no/such"), f"file name, not {error.filename!r}")


async def reading_a_folder_is_an_error_with_errno(subject: Subject) -> None:
    machine = await subject.machine()
    error = await raises(RemoteFileError, machine.read_file("."), "a folder")
    equal(error.errno, errno.EISDIR, "errno")


async def the_systems_files_cannot_be_written(subject: Subject) -> None:
    machine = await subject.machine()
    error = await raises(RemoteFileError, machine.write_file("/usr/bin/planted", b""), "/usr/bin")
    expect(error.errno in (errno.EACCES, errno.EROFS, errno.EPERM), f"errno {error.errno}")


async def pipes_and_devices_do_not_hang_a_reader(subject: Subject) -> None:
    machine = await subject.machine()
    await sh(machine, "mkfifo pipe")
    await raises(RemoteFileError, machine.read_file("pipe"), "a pipe")
    await raises(RemoteFileError, machine.read_file("/dev/zero"), "a device without end")
    await machine.remove("pipe")


async def links_are_followed_by_reading_and_not_by_listing(subject: Subject) -> None:
    machine = await subject.machine()
    await machine.write_file("links/target", b"content")
    await sh(machine, "ln -s target links/link; ln -s /no/such links/broken")
    equal(await machine.read_file("links/link"), b"content", "through a link")
    await machine.write_file("links/link", b"changed")
    equal(await machine.read_file("links/target"), b"changed", "written through a link")
    kinds = {status.name: status.kind for status in await machine.list_dir("links")}
    equal(kinds, {"target": "file", "link": "link", "broken": "link"}, "kinds")
    equal((await machine.stat("links/link")).kind, "file", "stat follows")
    equal((await machine.stat("links/link", follow=False)).kind, "link", "unless told not to")
    await machine.remove("links/link")
    equal(await machine.read_file("links/target"), b"changed", "removing a link keeps its target")


async def folders_are_made_with_their_parents(subject: Subject) -> None:
    machine = await subject.machine()
    await machine.make_dir("a/b/c")
    await machine.make_dir("a/b/c")
    equal((await machine.stat("a/b/c")).kind, "folder", "kind")
    await machine.write_file("d/e/f/file", b"x")
    equal(await machine.read_file("d/e/f/file"), b"x", "content")


async def removing_a_folder_needs_the_word_recursive(subject: Subject) -> None:
    machine = await subject.machine()
    await machine.write_file("full/file", b"x")
    error = await raises(RemoteFileError, machine.remove("full"), "a folder that is not empty")
    equal(error.errno, errno.ENOTEMPTY, "errno")
    await machine.remove("full", recursive=True)
    await raises(RemoteFileError, machine.stat("full"), "a removed folder")


async def deep_and_locked_trees_can_be_removed(subject: Subject) -> None:
    machine = await subject.machine()
    await python(
        machine,
        "import os\n"
        "os.mkdir('deep'); os.chdir('deep')\n"
        "for i in range(1500):\n"
        "    os.mkdir('d'); open('f', 'w').close(); os.chdir('d')\n"
        "os.mkdir('locked'); open('locked/f', 'w').close(); os.chmod('locked', 0)\n",
    )
    await machine.remove("deep", recursive=True)
    await raises(RemoteFileError, machine.stat("deep"), "the removed tree")


async def large_folders_are_listed_whole(subject: Subject) -> None:
    machine = await subject.machine()
    await sh(machine, "mkdir many; cd many; seq 3000 | xargs touch")
    found = {status.name for status in await machine.list_dir("many")}
    equal(found, {str(number) for number in range(1, 3001)}, "names")


async def the_layouts_folders_can_be_written(subject: Subject) -> None:
    machine = await subject.machine()
    for folder in (
        machine.layout.workdir,
        machine.layout.home,
        machine.layout.tmp,
        machine.layout.run,
    ):
        await machine.write_file(f"{folder}/probe", b"x")
        await machine.remove(f"{folder}/probe")
    out = (await sh(machine, "cd && pwd && echo ${TMPDIR:-/tmp}")).stdout.decode().split()
    equal(out, [machine.layout.home, machine.layout.tmp], "HOME and TMPDIR")


async def many_files_move_at_once(subject: Subject) -> None:
    machine = await subject.machine()

    async def one(number: int) -> None:
        data = bytes([number]) * 200_000
        await machine.write_file(f"parallel/{number}", data)
        expect(await machine.read_file(f"parallel/{number}") == data, f"file {number}")

    await asyncio.gather(*(one(number) for number in range(24)))


CHECKS = checks_in(globals())
