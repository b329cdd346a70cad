"""`seer view`: show runs in the browser, or write one run as a file to share."""

from pathlib import Path

import click

from seer.cli._options import run_argument, runs_option
from seer.console import say


@click.command(
    name="view",
    epilog="""\b
Examples:
  seer view                          all runs, live, on loopback
  seer view RUN                      one run
  seer view --allow-control          the page may stop runs and message agents
  seer view --share RUN -o run.html  one file, without secrets and paths""",
)
@run_argument("run", required=False)
@runs_option
@click.option("--port", default=0, help="The port (default: a free one).")
@click.option(
    "--allow-control",
    is_flag=True,
    help="Let the page stop runs, message agents and change limits.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--share", "shared", metavar="RUN", help="Write this run as one HTML file instead.")
@click.option(
    "-o",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --share: the file to write (default: the run's id).",
)
@click.option("--hide", "fields", multiple=True, help="With --share: a field to leave out.")
def command(
    run: str | None,
    root: Path | None,
    port: int,
    allow_control: bool,
    no_browser: bool,
    shared: str | None,
    target: Path | None,
    fields: tuple[str, ...],
) -> None:
    """Show runs in the browser. The page is served on this machine only."""
    from seer.runs import open_run
    from seer.viewer import Redaction, serve, share

    if shared is None:
        if fields or target is not None:
            raise click.UsageError("--hide and -o need --share RUN")
        run_id = None if run is None else open_run(run, root).run_id
        serve(
            root,
            port=port,
            allow_control=allow_control,
            open_browser=not no_browser,
            run_id=run_id,
        )
        return
    found = open_run(shared, root)
    where = target or Path(f"{found.run_id}.html")
    say(str(share(found, where, redact=Redaction(fields=fields))))
