"""``maxk bench``: hands its words to the benchmarks, which have flags of their own."""

from __future__ import annotations

import typer

#: typer's settings of a command that leaves its words, ``--help`` among them, to another parser.
PASS_ON = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def bench(context: typer.Context) -> int:
    """Measure the operations and whole epochs against what a user would run instead."""
    from maxk.bench.run import main

    return main(context.args)
