"""``maxk data``: which data sets there are and what is in one."""

from __future__ import annotations

import typer

app = typer.Typer(help="Look at data sets.", no_args_is_help=False)
