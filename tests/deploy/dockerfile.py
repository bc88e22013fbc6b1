"""Reads deploy/Dockerfile: its stages as instructions, for tests that do what it says without Docker; and its settings.
Knows only the forms that file uses; hadolint is the judge of everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from headwater import config

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
# What docs/guides/operating.md asks for.
FILES_MAX = config.Settings().connections_max + config.Settings().s3p_connections_max + 256


class Instruction(NamedTuple):
    word: str
    rest: str


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, FROM first; comments left out, continued lines joined by the shell's own rule."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    found: list[list[Instruction]] = []
    for line in "\n".join(lines).replace("\\\n", "").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append(Instruction(word, rest.strip()))
    return found


def all_of(stage: list[Instruction], word: str) -> list[str]:
    return [instruction.rest for instruction in stage if instruction.word == word]


def one_of(stage: list[Instruction], word: str) -> str:
    (found,) = all_of(stage, word)
    return found


def variables(stage: list[Instruction]) -> dict[str, str]:
    return dict(pair.split("=", 1) for rest in all_of(stage, "ENV") for pair in rest.split())


def health_command(stage: list[Instruction]) -> list[str]:
    return json.loads(one_of(stage, "HEALTHCHECK").partition("CMD ")[2])


def copied_from_the_tree(stage: list[Instruction]) -> list[tuple[str, str]]:
    """Pairs of a path below the root of the repository and where it is put."""
    copies = [rest.split() for rest in all_of(stage, "COPY") if not rest.startswith("--from")]
    return [(source, words[-1]) for words in copies for source in words[:-1]]


def container_settings() -> config.Settings:
    return config.load({}, {}, DEPLOY / "container.toml")
