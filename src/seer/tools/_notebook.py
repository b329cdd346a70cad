"""The tools of a notebook session: cells that are added, run, edited, moved and read."""

from __future__ import annotations

from functools import partial

from seer.execution import CellInfo, NotebookSession
from seer.tools._session import PATIENCE, check_wait, common_tools, render, run
from seer.tools._tool import Tool, ToolContext, ToolOutput, typed_tool

_SHOWN = 2000
"""Characters of one cell in a listing."""


def notebook_tools(session: NotebookSession) -> list[Tool]:
    """The tools of `session`."""

    async def result_of(cell_id: str, wait: float, context: ToolContext) -> ToolOutput:
        submit = partial(session.asubmit_cell, cell_id)
        return render(await run(session, submit, wait, context))

    async def add_code_cell(
        context: ToolContext, source: str, index: int | None = None, wait: float = PATIENCE
    ) -> ToolOutput:
        """Add a code cell to the notebook, run it, and get what it prints and displays.

        Variables, imports and functions last from one cell to the next. The value of the last
        expression is shown, plots and images too.

        Args:
            source: The code.
            index: Where to put the cell, counted from 0; at the end by default.
            wait: Seconds to wait for its end. A cell that takes longer goes on running, and
                get_result gives its result later.
        """
        check_wait(wait)
        return await result_of(await session.aadd_cell(source, index=index), wait, context)

    async def add_markdown_cell(source: str, index: int | None = None) -> ToolOutput:
        """Add a text cell (Markdown) to the notebook.

        Args:
            source: The text.
            index: Where to put the cell, counted from 0; at the end by default.
        """
        cell_id = await session.aadd_cell(source, markdown=True, index=index)
        return ToolOutput(text=f"added cell {cell_id}")

    async def run_cell(context: ToolContext, cell_id: str, wait: float = PATIENCE) -> ToolOutput:
        """Run a cell of the notebook again, as it now stands.

        Args:
            cell_id: The cell, as list_cells shows it.
            wait: Seconds to wait for its end.
        """
        return await result_of(cell_id, wait, context)

    async def edit_cell(
        context: ToolContext,
        cell_id: str,
        source: str,
        run_it: bool = True,
        wait: float = PATIENCE,
    ) -> ToolOutput:
        """Give a cell another source, and run it.

        Args:
            cell_id: The cell, as list_cells shows it.
            source: Its new source, whole.
            run_it: Whether to run it; text cells are never run.
            wait: Seconds to wait for its end.
        """
        check_wait(wait)
        await session.aedit_cell(cell_id, source)
        kinds = {cell.cell_id: cell.kind for cell in await session.acells()}
        if run_it and kinds.get(cell_id) == "code":
            return await result_of(cell_id, wait, context)
        return ToolOutput(text=f"changed cell {cell_id}")

    async def delete_cell(cell_id: str) -> ToolOutput:
        """Remove a cell from the notebook. What it has done in memory stays.

        Args:
            cell_id: The cell, as list_cells shows it.
        """
        await session.adelete_cell(cell_id)
        return ToolOutput(text=f"deleted cell {cell_id}")

    async def move_cell(cell_id: str, index: int) -> ToolOutput:
        """Put a cell at another place in the notebook.

        Args:
            cell_id: The cell, as list_cells shows it.
            index: Its new place, counted from 0.
        """
        await session.amove_cell(cell_id, index)
        return ToolOutput(text=f"moved cell {cell_id}")

    async def list_cells() -> ToolOutput:
        """List the cells of the notebook with the beginning of each, also a person's."""
        cells = await session.acells()
        lines = [_line(index, cell) for index, cell in enumerate(cells)]
        return ToolOutput(text="\n".join(lines) or "the notebook is empty")

    async def read_cell(cell_id: str) -> ToolOutput:
        """Read a cell of the notebook: its source, and the text of its outputs.

        Args:
            cell_id: The cell, as list_cells shows it.
        """
        for cell in await session.acells():
            if cell.cell_id == cell_id:
                outputs = cell.output_text
                text = f"{cell.source}\n\n[outputs]\n{outputs}" if outputs else cell.source
                return ToolOutput(text=text[:20_000])
        raise LookupError(f"no cell {cell_id!r} in the notebook; list_cells shows them")

    changing = [add_code_cell, add_markdown_cell, run_cell, edit_cell, delete_cell, move_cell]
    return [
        *(typed_tool(function) for function in changing),
        typed_tool(list_cells, read_only=True),
        typed_tool(read_cell, read_only=True),
        *common_tools(session),
    ]


def _line(index: int, cell: CellInfo) -> str:
    source = cell.source if len(cell.source) <= _SHOWN else cell.source[:_SHOWN] + " ..."
    count = f" [{cell.execution_count}]" if cell.execution_count is not None else ""
    return f"{index}: {cell.cell_id} ({cell.kind}){count}\n{source}\n"
