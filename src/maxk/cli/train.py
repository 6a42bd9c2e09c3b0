"""``maxk train``: flags made from the fields of the configuration, then a run."""

from __future__ import annotations

import inspect
import shlex
from dataclasses import fields
from typing import Annotated, Any

import typer

from maxk.core.errors import ConfigError
from maxk.train.config import (
    TrainConfig,
    choices,
    field_help,
    field_types,
    flag,
    parse_flag,
    repeats,
)


def train(**flags: Any) -> int:
    """Train a model on a graph; settings come from flags, else from --config, else the default."""
    config = configure(flags)

    from rich.console import Console

    from maxk.cli import display
    from maxk.train.run import Interrupted, run

    try:
        with display.watched(quiet=config.quiet) as watcher:
            folder, summary = run(config, watcher)
    except Interrupted as stop:
        typer.echo(
            f"maxk: stopped after epoch {stop.epoch}; continue with "
            f"maxk train --resume {shlex.quote(str(stop.folder))}",
            err=True,
        )
        return 128 + stop.signal
    out = Console()
    for line in display.result_lines(summary):
        display.say(out, line)
    display.say(out, f"saved in {folder}")
    return 0


def configure(flags: dict[str, Any]) -> TrainConfig:
    """Returns the settings that flags ask for; a flag that was not given is None.

    Raises:
        ConfigError: a value or the file named by ``config`` is wrong.
    """
    given: dict[str, Any] = {
        name: parse_flag(name, value) if isinstance(value, str) else value
        for name, value in flags.items()
        # A flag that may be repeated and is not given is an empty list.
        if value is not None and value != [] and name != "config"
    }
    file = flags.get("config")
    if "resume" in given:
        if file is not None:
            raise ConfigError("--config cannot go with --resume: a run keeps its own settings")
        from maxk.train.folder import resumed_config

        return resumed_config(str(given.pop("resume")), **given)
    return TrainConfig(**given) if file is None else TrainConfig.from_toml(file, **given)


def _signature() -> inspect.Signature:
    kinds, helps = field_types(), field_help()
    parameters = [_parameter("config", str, "--config", "TOML file of settings.", "FILE", "")]
    for f in fields(TrainConfig):
        kind, default = kinds[f.name], f.default
        name = flag(f.name)
        if kind is bool:
            spelled = f"{name}/--no-{name[2:]}" if f.name != "quiet" else name
            shown = "on" if default else "off"
            parameters.append(_parameter(f.name, bool, spelled, helps[f.name], None, shown))
        else:
            shown = "" if default is None or default == () else str(default)
            holds = list[str] if repeats(kind) else str
            parameters.append(
                _parameter(f.name, holds, name, helps[f.name], _metavar(f.name, kind), shown)
            )
    return inspect.Signature(parameters, return_annotation=int)


def _parameter(
    name: str, kind: type, spelled: str, text: str, metavar: str | None, shown: str
) -> inspect.Parameter:
    if shown:
        text = f"{text}  [default: {shown}]"
    option = typer.Option(spelled, help=text, metavar=metavar, show_default=False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _metavar(name: str, kind: object) -> str:
    if words := choices(kind):
        return "|".join(words)
    names = {"dataset": "NAME|PATH", "split": "N|seed", "out": "DIR", "resume": "RUN"}
    names |= {"features": "FILE", "labels": "FILE", "threshold": "X"}
    return names.get(name) or {int: "N", float: "X", str: "TEXT"}[kind]  # type: ignore[index]


# typer reads the signature of the function, so that no flag is written down a second time.
train.__signature__ = _signature()  # type: ignore[attr-defined]
train.__annotations__ = {
    p.name: p.annotation
    for p in train.__signature__.parameters.values()  # type: ignore[attr-defined]
}
