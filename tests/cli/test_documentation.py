"""The manual: its commands run, print what it says, and its code and files are as it says.

A ``console`` block holds commands and what they print, where ``…`` stands for anything, and alone on a line for any lines. A file
is given as a block behind a line that says ``Save as`` and its name.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from infercheck.catalogue import defects_json, invariants_json
from infercheck.cli import main
from tests.cli.driver import REPOSITORY, call

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
NAMES = [page.name for page in PAGES]

pages = pytest.mark.parametrize("page", PAGES, ids=NAMES)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[tuple[str, str]]:
    """Every command of a page with what it prints."""
    found = []
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ infercheck ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def pattern(output: str) -> str:
    """What a page prints as a regular expression over words with single spaces."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    return "".join(
        r"(?:.*\n)*?" if line == "…" else ".*".join(re.escape(part.strip()) for part in line.split("…")) + r"\n" for line in lines
    )


def printed(output: str) -> str:
    return "".join(" ".join(line.split()) + "\n" for line in output.splitlines() if line.strip())


@pages
def test_the_commands_of_a_page_print_what_it_says(page: Path, directory: Path) -> None:
    (directory / "regressions").symlink_to(REPOSITORY / "regressions")
    for name, text in re.findall(r"Save as `(.+?)`:\n\n```json\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        (directory / name).write_text(text)
    for command, output in commands(page):
        result = call(*shlex.split(command))
        assert result.exit_code in (0, 1), result.output
        assert re.match(pattern(output), printed(result.stdout)), f"{command} prints\n{result.stdout}"


def test_the_violation_in_the_readme_is_printed_to_the_letter(directory: Path) -> None:
    (directory / "regressions").symlink_to(REPOSITORY / "regressions")
    command, output = commands(PAGES[0])[0]
    assert call(*shlex.split(command)).stdout.rstrip() == output.rstrip()


@pages
def test_the_code_of_a_page_runs(page: Path) -> None:
    for block in blocks(page, "python"):
        done = subprocess.run([sys.executable, "-c", block], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pages
def test_the_json_of_a_page_is_json(page: Path) -> None:
    for block in blocks(page, "json"):
        try:
            json.loads(block)
        except json.JSONDecodeError:
            for line in block.splitlines():
                json.loads(line)


@pages
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pages
def test_a_page_names_no_command_that_does_not_exist(page: Path) -> None:
    for command in re.findall(r"`?infercheck ([a-z]+)", page.read_text()):
        assert command in main.commands or command in ("stands",), command


def test_every_command_is_in_the_manual() -> None:
    manual = (REPOSITORY / "docs" / "commands.md").read_text()
    for command in main.commands:
        assert f"$ infercheck {command}" in manual


def test_every_invariant_and_defect_that_the_manual_lists_exists() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|", (REPOSITORY / "docs" / "invariants.md").read_text(), re.MULTILINE)
    assert len(listed) > 20
    assert set(listed) <= {invariant["id"] for invariant in invariants_json()}
    changes = re.findall(r"`([a-z]+(?:-[a-z]+)+)`", (REPOSITORY / "CHANGELOG.md").read_text())
    assert set(changes) <= {defect["id"] for defect in defects_json()}


def test_the_set_up_of_the_readme_is_two_commands_and_that_of_the_checks() -> None:
    readme, checks = PAGES[0].read_text(), (REPOSITORY / ".ci" / "run").read_text()
    set_up = blocks(PAGES[0], "sh")
    assert [block.count("\n") for block in set_up] == [1, 1]
    assert all("-m venv" in block and "pip install -q -e" in block for block in set_up)
    assert "pip\" install -q -e '.[test,lint]'" in checks
    assert readme.index("infercheck check\n```") < readme.index("-m pytest")
