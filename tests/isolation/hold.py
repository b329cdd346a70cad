"""Start a jail whose output is this process's own, and wait for it. A script for the tests.

`hold.py BACKEND ARGV...`: the test kills this process and watches the pipe.
"""

import os
import subprocess
import sys
from typing import cast

from seer.isolation import JAIL_UIDS, BackendName, Policy, choose


def main(backend: BackendName, *argv: str) -> None:
    """Start the jail, and wait."""
    uid = JAIL_UIDS[4] if os.geteuid() == 0 else None
    policy = Policy(env={"PATH": "/usr/bin:/bin"}, uid=uid)
    launch = choose(backend).launch(policy, argv)
    process = subprocess.Popen(launch.argv, env=launch.env, pass_fds=launch.pass_fds)
    launch.close()
    process.wait()


if __name__ == "__main__":
    main(cast("BackendName", sys.argv[1]), *sys.argv[2:])
