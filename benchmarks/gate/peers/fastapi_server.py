"""FastAPI with declared models, served by uvicorn on a Unix socket."""

from __future__ import annotations

import sys
import traceback

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from benchmarks.gate import _work

app = FastAPI()


class Small(BaseModel):
    """Arguments of `small`."""

    x: int


class Floats(BaseModel):
    """Arguments of `floats`."""

    n: int


class Take(BaseModel):
    """Arguments of `take`."""

    values: list[float]


class Array(BaseModel):
    """Arguments of `array`."""

    nbytes: int
    stamp: int


class Fail(BaseModel):
    """Arguments of `fail`."""

    message: str


@app.post("/small")
def small(body: Small) -> int:
    """See `_work`. Plain functions run in the thread pool, so that the loop stays free."""
    return _work.small(body.x)


@app.post("/floats")
def floats(body: Floats) -> list[float]:
    """See `_work`."""
    return _work.floats(body.n)


@app.post("/take")
def take(body: Take) -> float:
    """See `_work`."""
    return _work.take(body.values)


@app.post("/array")
def array(body: Array) -> Response:
    """See `_work`. Raw bytes are the fastest form over HTTP."""
    content = _work.array(body.nbytes, body.stamp).tobytes()
    return Response(content, media_type="application/octet-stream")


@app.post("/fail")
def fail(body: Fail) -> None:
    """See `_work`."""
    _work.fail(body.message)


@app.exception_handler(ValueError)
def on_error(request: Request, error: ValueError) -> JSONResponse:
    """Send the raised error, as a gate would."""
    text = "".join(traceback.format_exception(error))
    return JSONResponse({"error": str(error), "traceback": text}, status_code=500)


if __name__ == "__main__":
    uvicorn.run(app, uds=sys.argv[1], log_level="error", access_log=False, backlog=512)
