"""Attempts on the host's files: read them, change them, learn about them."""

# Which call is made is the point here, so it is spelled out.
# ruff: noqa: PTH101, PTH104, PTH108, PTH115, PTH116, PTH123, PTH208
from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import sys
from pathlib import Path

from ._attempt import Facts, attempt, syscall


def _shows(facts: Facts, path: str) -> str | None:
    data = Path(path).read_bytes()
    return f"{path} was read" if facts["canary"].encode() in data else None


@attempt("files", "Read a file of the host")
def read_host_file(facts: Facts) -> str | None:
    return _shows(facts, facts["secret_file"])


@attempt("files", "List a folder of the host")
def list_host_folder(facts: Facts) -> str | None:
    return f"{os.listdir(facts['secret_folder'])}"


@attempt(
    "files", "Learn that a file of the host exists, its size and times", weak=("landlock-user",)
)
def stat_host_file(facts: Facts) -> str | None:
    return f"{os.stat(facts['secret_file']).st_size} bytes"


@attempt("files", "Learn where a symbolic link of the host leads", weak=("landlock-user",))
def read_host_link(facts: Facts) -> str | None:
    return os.readlink(facts["secret_link"])


@attempt("files", "Learn the host paths behind the jail's mounts from the mount table")
def read_mount_table(facts: Facts) -> str | None:
    names = [facts["workspace_source"], facts["workspace_source"].rstrip("/").rsplit("/", 1)[-1]]
    # Every process has a table of its own, also the jail's first.
    for process in ("self", "thread-self", *filter(str.isdigit, _names("/proc"))):
        for table in ("mountinfo", "mounts", "mountstats"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{process}/{table}").read_text()
                if any(name in text for name in names):
                    return f"/proc/{process}/{table}"
    return None


@attempt("files", "Read what was installed on the host under /usr/local")
def read_local_programs(facts: Facts) -> str | None:
    prefixes = {sys.base_prefix, sys.prefix, str(Path(sys.executable).parents[1])}
    for prefix in ("/usr", *prefixes):
        found = [name for name in _names(f"{prefix}/local") if _names(f"{prefix}/local/{name}")]
        if found:
            return f"{prefix}/local: {found}"
    return None


@attempt("files", "Read the packages that are installed for the host's own Python")
def read_host_packages(facts: Facts) -> str | None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for prefix in ("/usr", sys.base_prefix):
        for folder in ("lib/python3", f"lib/{version}", f"lib64/{version}"):
            for name in ("dist-packages", "site-packages"):
                found = _names(f"{prefix}/{folder}/{name}")
                if found:
                    return f"{prefix}/{folder}/{name}: {found[:5]}"
    return None


@attempt("files", "Read an attribute of a file of the host")
def read_host_attribute(facts: Facts) -> str | None:
    with contextlib.suppress(OSError):
        return os.getxattr(facts["secret_file"], "user.canary").decode()
    return f"its attributes: {os.listxattr(facts['secret_file'])}"


@attempt("files", "Read the host's list of users")
def read_host_users(facts: Facts) -> str | None:
    users = Path("/etc/passwd").read_text()
    return "it names the host's users" if f"{facts['host_user']}:" in users else None


@attempt("files", "Read the host's password hashes")
def read_host_shadow(facts: Facts) -> str | None:
    return f"{len(Path('/etc/shadow').read_bytes())} bytes"


@attempt("files", "List home folders of the host")
def list_homes(facts: Facts) -> str | None:
    for folder in ("/root", "/home"):
        with contextlib.suppress(OSError):
            if names := os.listdir(folder):
                return f"{folder}: {names}"
    return None


@attempt("files", "Read Seer's own package")
def read_seer(facts: Facts) -> str | None:
    return f"{os.listdir(facts['package'])}"


@attempt("files", "Import Seer")
def import_seer(facts: Facts) -> str | None:
    __import__("seer.isolation")
    return "it could be imported"


@attempt("files", "Find Seer's distribution on the import path")
def find_seer_distribution(facts: Facts) -> str | None:
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):
                path = Path(folder, name)
                if (
                    name.lower().startswith(("seer-", "seer_"))
                    and path.is_dir()
                    and os.listdir(path)
                ):
                    return str(path)
    return None


@attempt("files", "Follow a symbolic link that leads out of the workspace")
def follow_link_out(facts: Facts) -> str | None:
    link = Path(facts["workspace"], "link-to-file")
    link.symlink_to(facts["secret_file"])
    return _shows(facts, str(link))


@attempt("files", "Follow a linked folder out of the workspace and climb up")
def climb_from_linked_folder(facts: Facts) -> str | None:
    link = Path(facts["workspace"], "link-to-folder")
    link.symlink_to(facts["secret_folder"])
    return _shows(facts, f"{link}/../{facts['secret_file'].rsplit('/', 1)[-1]}")


@attempt("files", "Climb out of the workspace with `..`")
def climb_out(facts: Facts) -> str | None:
    return _shows(facts, facts["workspace"] + "/.." * 30 + facts["secret_file"])


@attempt("files", "Give a file of the host a second name inside the workspace")
def hard_link_host_file(facts: Facts) -> str | None:
    path = f"{facts['workspace']}/hard"
    os.link(facts["secret_file"], path)
    return _shows(facts, path)


@attempt("files", "Give a read-only file a second, writable name")
def hard_link_read_only(facts: Facts) -> str | None:
    path = f"{facts['workspace']}/writable"
    os.link(facts["read_only_file"], path)
    with open(path, "a") as file:
        file.write("changed")
    return "it was changed through its second name"


@attempt("files", "Create a file in an open folder of the host")
def write_host_folder(facts: Facts) -> str | None:
    path = Path(facts["open_folder"], "planted")
    path.write_text("planted")
    return str(path)


@attempt("files", "Change a file of the host that the jail's user owns")
def write_host_file(facts: Facts) -> str | None:
    with open(facts["open_file"], "a") as file:
        file.write("changed")
    return facts["open_file"]


@attempt("files", "Write into a read-only mount (libraries, models)")
def write_read_only(facts: Facts) -> str | None:
    with open(facts["read_only_file"], "a") as file:
        file.write("changed")
    return facts["read_only_file"]


@attempt("files", "Truncate a file in a read-only mount")
def truncate_read_only(facts: Facts) -> str | None:
    os.truncate(facts["read_only_file"], 0)
    return facts["read_only_file"]


@attempt("files", "Truncate a read-only file while opening it for reading")
def truncate_by_reading(facts: Facts) -> str | None:
    os.open(facts["read_only_file"], os.O_RDONLY | os.O_TRUNC)
    return facts["read_only_file"]


@attempt("files", "Rename a file in a read-only mount")
def rename_read_only(facts: Facts) -> str | None:
    os.rename(facts["read_only_file"], facts["read_only_file"] + ".moved")
    return facts["read_only_file"]


@attempt("files", "Delete a file in a read-only mount")
def delete_read_only(facts: Facts) -> str | None:
    os.unlink(facts["read_only_file"])
    return facts["read_only_file"]


@attempt("files", "Change the mode of a file in a read-only mount")
def chmod_read_only(facts: Facts) -> str | None:
    before = os.stat(facts["read_only_file"]).st_mode
    os.chmod(facts["read_only_file"], 0o777)
    after = os.stat(facts["read_only_file"]).st_mode
    return f"{after:o}" if after != before else None


@attempt("files", "Change the mode of a file of the host")
def chmod_host_file(facts: Facts) -> str | None:
    before = os.stat(facts["open_file"]).st_mode
    os.chmod(facts["open_file"], stat.S_IMODE(before) ^ 0o111)
    after = os.stat(facts["open_file"]).st_mode
    return f"{after:o}" if after != before else None


@attempt("files", "Change the times of a file of the host")
def touch_host_file(facts: Facts) -> str | None:
    os.utime(facts["open_file"], (1, 1))
    return "its times changed" if os.stat(facts["open_file"]).st_mtime == 1 else None


@attempt("files", "Attach an attribute to a file of the host")
def set_host_attribute(facts: Facts) -> str | None:
    os.setxattr(facts["open_file"], "user.planted", b"1")
    return "attribute set"


@attempt("files", "Write into the system's folders")
def write_system(facts: Facts) -> str | None:
    for folder in ("/usr/bin", "/usr/lib", "/usr/local", "/etc", "/dev", "/sys", "/"):
        with contextlib.suppress(OSError):
            Path(folder, "seer-planted").write_text("planted")
            return folder
    return None


@attempt("files", "Open a file by its handle instead of its path")
def open_by_handle(facts: Facts) -> str | None:
    handle = ctypes.create_string_buffer(136)
    handle[0:4] = (128).to_bytes(4, sys.byteorder)
    mount = ctypes.c_int()
    syscall(
        "name_to_handle_at",
        -100,
        ctypes.c_char_p(b"/"),
        ctypes.byref(handle),
        ctypes.byref(mount),
        0,
    )
    fd = os.open("/", os.O_RDONLY)
    syscall("open_by_handle_at", fd, ctypes.byref(handle), os.O_RDONLY)
    return "opened"


@attempt("files", "Reach the host's root through /proc")
def proc_root(facts: Facts) -> str | None:
    for pid in ("1", "self", str(os.getppid()), str(facts["pid"])):
        with contextlib.suppress(OSError):
            if evidence := _shows(facts, f"/proc/{pid}/root{facts['secret_file']}"):
                return evidence
    return None


@attempt("files", "Inherit an open folder of the host")
def inherited_folder(facts: Facts) -> str | None:
    for fd in range(3, 1024):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                return f"descriptor {fd}"
    return None


@attempt("files", "Watch a folder of the host for changes")
def watch_host_folder(facts: Facts) -> str | None:
    fd = syscall("inotify_init1", 0)
    folder = facts["secret_folder"].encode()
    syscall("inotify_add_watch", fd, ctypes.c_char_p(folder), 0xFFF)
    return "watching"


@attempt("files", "Watch the whole file system")
def watch_file_system(facts: Facts) -> str | None:
    syscall("fanotify_init", 0, os.O_RDONLY)
    return "watching"


@attempt("files", "Read shared memory of the host")
def read_host_shm(facts: Facts) -> str | None:
    return _shows(facts, facts["shm_file"])


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


@attempt("files", "Find a secret in the environment")
def read_environment(facts: Facts) -> str | None:
    found = [key for key, value in os.environ.items() if facts["canary"] in value]
    return f"{found}" if found else None
