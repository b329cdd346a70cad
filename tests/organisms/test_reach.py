"""No agent can read the truth, neither from its session nor from the model's machine."""

from pathlib import Path

import pytest

from seer.execution import create_local_session
from seer.organisms import ground_truth

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SEARCH = """
import os
seen = []
for folder, folders, files in os.walk("/"):
    folders[:] = [f for f in folders if os.path.join(folder, f) not in ("/proc", "/sys", "/dev")]
    secret = {"truth.json", "labelled.json", "_probes.py"}.intersection(files)
    seen += [os.path.join(folder, name) for name in secret]
try:
    import seer.organisms
    seen.append("seer.organisms")
except ImportError:
    pass
print("seen:", seen)
"""


def test_a_session_sees_neither_the_truth_nor_the_package(tmp_path: Path) -> None:
    assert ground_truth("secret").property  # there, for a grader
    session = create_local_session(workspace_dir=tmp_path / "workspace")
    try:
        assert "seen: []" in session.exec(SEARCH).text
    finally:
        session.close()
