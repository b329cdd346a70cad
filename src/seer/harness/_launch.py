"""Starts a vendor's agent with an environment of its own (standard library only).

The SDK starts this in place of the vendor's program and would pass on the whole environment of the
controller. `launch.json` beside it says what is run, in which environment, and which variables of
the SDK's own are passed on.
"""

import json
import os
import sys


def main() -> None:
    """Replace this process by the vendor's program."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    with open(os.path.join(folder, "launch.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        plan = json.load(file)
    environment = dict(plan["env"])
    for name in plan["pass"]:
        if name in os.environ:
            environment[name] = os.environ[name]
    argv = [*plan["argv"], *sys.argv[1:]]
    with open(os.path.join(folder, "pid"), "w", encoding="ascii") as file:  # noqa: PTH118, PTH123
        file.write(str(os.getpid()))
    os.chdir(plan["cwd"])
    os.execve(argv[0], argv, environment)


if __name__ == "__main__":
    main()
