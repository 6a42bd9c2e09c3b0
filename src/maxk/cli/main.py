"""The command ``maxk``: which commands there are, and how an error looks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from maxk.cli import bench, data, demo, export, fit, info, profile, report, runs, sweep, train
from maxk.cli.words import ManyWords
from maxk.core.errors import MaxKError

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
    143 an end by SIGINT and SIGTERM. Any other exception is a fault of this package and keeps its
    traceback.

    Args:
        arguments: Words after the command's name; by default those of the process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
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
    except BrokenPipeError:
        # The reader of a pipe left; Python must not complain again when it flushes at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code if isinstance(code, int) else 0


def _refuse(message: str) -> int:
    typer.echo("maxk: " + " ".join(message.split()), err=True)
    return 2
