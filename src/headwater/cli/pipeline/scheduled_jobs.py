"""Jobs of a schedule as commands: their options are those of the command line, and so are their checks.

Owns which jobs a schedule may have, and how a command is run without a terminal. Never parses an option itself: the
command's own parameters do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from headwater.cli.pipeline.lent import Loan, WouldRun, lent
from headwater.spark.job_runs import DONE, FAILED, FINDINGS, JobRefused, silent
from headwater.spark.schedules.running import Progress
from headwater.spark.schedules.serving import Ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = ("backup", "compact", "declared", "derive", "erase", "fold", "route", "usage", "verify")
SERVERS = frozenset({"url", "token", "master", "conf", "verbose"})
"""Options that are the server's: all jobs have one node and one session."""
ENDLESS = {"continuous": "at and every say how often it runs", "follow": "at and every say how often it runs"}
Commands = Mapping[str, Any]
"""Those of `headwater pipeline run`, by name."""
LOOKS = {key: "it is for one look, and changes nothing" for key in ("check", "dry-run")}
ONCE = {("erase", "stream"): "of one stream it is done once, and its name is written down nowhere"}


def complaints(commands: Commands, job: str, options: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the options of a job. The command itself is asked, up to where it would begin."""
    if job not in JOBS:
        yield f"job: {job!r} is none of {', '.join(JOBS)}"
        return
    command = commands[job]
    found = list(_parsed(command, options))
    wrong = [text for text, _, _ in found if text]
    yield from wrong
    if wrong:
        return
    try:
        _invoke(command, {name: value for _, name, value in found}, Loan(None, silent), "http://127.0.0.1:1", None)
    except WouldRun:
        pass
    except typer.BadParameter as error:
        yield f"options: {error.message}"
    except JobRefused as refused:
        yield f"options: {refused}"
    except Exception as error:
        yield f"options: {type(error).__name__}: {error}"


def run(
    commands: Commands,
    job: str,
    options: Mapping[str, Any],
    url: str,
    token: str | None,
    session: Callable[[], SparkSession],
    progress: Progress,
) -> Ended:
    """Runs the job in this thread, and says what became of it."""
    from headwater.spark.failures import cause, spark_errors

    command = commands[job]
    given = {name: value for _, name, value in _parsed(command, options)}
    loan = Loan(session, progress)
    try:
        _invoke(command, given, loan, url, token)
    except typer.Exit as ended:
        outcome = FINDINGS if ended.exit_code and loan.summary else DONE if not ended.exit_code else FAILED
        return Ended(outcome, _findings(loan.summary) if outcome == FINDINGS else "")
    except typer.BadParameter as error:
        return Ended(FAILED, error.message)
    except spark_errors() as error:
        return Ended(FAILED, cause(error))
    except Exception as error:  # whatever a job raises: the server goes on
        return Ended(FAILED, str(error) if isinstance(error, JobRefused) else f"{type(error).__name__}: {error}")
    outcome = str(loan.summary.get("outcome", DONE))
    return Ended(outcome, _findings(loan.summary) if outcome == FINDINGS else "")


def _findings(summary: Mapping[str, Any]) -> str:
    count = summary.get("findings_count")
    return f"{count} findings" if count else "see its summary in `headwater pipeline status`"


def _parsed(command: Any, options: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """For each parameter of the command (complaint, name, value); a complaint for each option that it does not have."""
    by_key = {_key(one): one for one in command.params}
    for key in options:
        if key.replace("_", "-") not in by_key:
            yield f"options: {key}: {command.name} has no such option", "", None
    with typer.Context(command) as context:
        for key, parameter in by_key.items():
            if key in SERVERS:
                if key in options:
                    yield f"options: {key}: it is one for all jobs: say it for the schedule, or its server", "", None
                continue
            value = options.get(key, options.get(key.replace("-", "_")))
            if value and (why := ONCE.get((command.name, key)) or {**ENDLESS, **LOOKS}.get(key)):
                yield f"options: {key}: {why}", "", None
                continue
            try:
                typed = None if value is None else _typed(parameter, value)
                parameter.handle_parse_result(context, {} if typed is None else {parameter.name: typed}, [])
            except typer.BadParameter as error:
                yield f"options: {key}: {getattr(error, 'message', None) or 'it is missing'}", "", None
            except TypeError as error:
                yield f"options: {key}: {error}", "", None
            else:
                yield "", parameter.name, context.params[parameter.name]


def _key(parameter: Any) -> str:
    """An option's long name without dashes; an argument's by what its help calls it, or its own."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).lower()
    return str(next(name for name in parameter.opts if name.startswith("--")))[2:]


def _typed(parameter: Any, value: Any) -> Any:
    """The value as it would be typed. Raises TypeError."""
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise TypeError("write true or false")
        return value
    if parameter.multiple:
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(one, str | int | float) for one in values):
            raise TypeError("write a text, or a list of texts")
        return tuple(str(one) for one in values)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("write one text or number")
    return str(value)


def _invoke(command: Any, given: Mapping[str, Any], loan: Loan, url: str, token: str | None) -> None:
    servers = {"url": url, "token": token, "master": None, "verbose": False}
    names = {parameter.name for parameter in command.params}
    others = {parameter.name: parameter.default for parameter in command.params if parameter.name not in given}
    values = {**others, **given, **{name: value for name, value in servers.items() if name in names}}
    with lent(loan), typer.Context(command) as context:
        context.params = {name: value for name, value in values.items() if name}
        command.invoke(context)
