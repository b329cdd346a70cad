"""Arrays of a run are exported under their own numbers, or it says which are not."""

import json
from pathlib import Path

import numpy as np
import pytest

from seer.errors import RecordError
from seer.runs import GateCall, RunInfo, RunRecord, export_arrays, open_run


def test_a_stream_that_lacks_items_is_not_exported_as_if_it_were_whole(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, "20260101-000000-aaaaaaaa", meta=RunInfo())
    for function, more in (("parts", {"left_out": 1}), ("whole", {})):
        numbers = np.arange(3.0)
        array = {"$seer": "array", "dtype": "<f8", "shape": [3], "buffer": 0}
        stream = {"stream": [{"item": array, "buffers": [24]}], **more, "end": None}
        text = json.dumps(stream, separators=(",", ":"))
        made = GateCall(
            interface="tools",
            caller="lab-1",
            function=function,
            arguments="[[],{}]",
            result=text,
            result_buffers=(record.blob(numbers.tobytes()),),
        )
        record.call(made.to_json())
    record.close("completed")
    run = open_run("20260101-000000-aaaaaaaa", tmp_path)
    target = tmp_path / "arrays"
    with pytest.raises(RecordError, match="'parts': the record lacks 1 of the items") as raised:
        export_arrays(run, target)
    assert [path.name for path in target.iterdir()] == ["0001-whole-result-0.npy"]
    assert str(target) in str(raised.value)
