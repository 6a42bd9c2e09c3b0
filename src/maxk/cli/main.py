"""The command ``maxk``: which commands there are, and how an error looks."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from maxk.cli import bench, data, demo, export, fit, info, profile, report, runs, sweep, train
from maxk.cli.words import ManyWords
from maxk.core.errors import MaxKError

#: How text is written to a stream whose encoding lacks a sign of it.
SHOWABLE = "maxk-showable"

app = typer.Typer(
    help="Train graph neural networks with MaxK: compressed features, sparse kernels.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.train)
app.command("evaluate")(runs.evaluate)
app.command("predict")(runs.predict)
app.command("export")(export.export)
app.command("sweep", cls=ManyWords)(sweep.sweep)
app.command("fit", cls=ManyWords)(fit.fit)
app.command("profile")(profile.profile)
app.command("demo")(demo.demo)
app.command("info")(info.info)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.add_typer(report.app, name="report")

# typer carries its own copy of click in some versions and imports it in others.
_UsageError: type[typer.BadParameter] = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Says what there is when no command is named."""
    if version:
        import importlib.metadata

        typer.echo(f"maxk {importlib.metadata.version('maxk')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code of the process.

    0 is success, 2 a wrong flag, file, folder or device (one line on stderr says which), 130 and
    143 an end by SIGINT and SIGTERM, 141 a reader of its output that has closed the pipe. Any other
    exception is a fault of this package and keeps its traceback.

    Args:
        arguments: Words after the command's name; by default those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=SHOWABLE)
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        # Here, so that a pipe that has closed shows now and not when the process ends.
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as end:
        # rich ends the process with code 1 where a pipe has closed.
        if isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError):
            raise
        # Python must not complain again when it flushes at exit.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 141
    return code


def _run(words: list[str]) -> int:
    try:
        code = app(args=words, prog_name="maxk", standalone_mode=False)
    except MaxKError as error:
        return _refuse(str(error))
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message())
            return 0
        return _refuse(f"{error.format_message()} (see 'maxk --help')")
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("maxk: interrupted", err=True)
        return 130
    return code if isinstance(code, int) else 0


def _showable(error: UnicodeError) -> tuple[str, int]:
    """Writes what a stream cannot encode in ASCII: a sign in its place, or an escape."""
    assert isinstance(error, UnicodeEncodeError)
    signs = {"\u00b1": "+-", "\u00d7": "x", "\u2026": "...", "\u2013": "-", "\u2014": "-"}
    text = error.object[error.start : error.end]
    plain = "".join(signs.get(c, c) for c in text).encode("ascii", "backslashreplace")
    return plain.decode("ascii"), error.end


codecs.register_error(SHOWABLE, _showable)


def _refuse(message: str) -> int:
    typer.echo("maxk: " + " ".join(message.split()), err=True)
    return 2
