"""Words that nobody who runs GPU fleets would use do not come back into code, texts and pages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
FOLDERS = ("gpustate", "states", "lab", "docs", "bench", "vagrant", "inventories", "README.md")

#: A phrase, and what to write instead.
PHRASES = {
    r"\bstand_in\b": "placeholder",
    r"\bclass Ask[A-Z]\w*": "Query",
    r"\bnode\.ask\(": "node.query(",
    r"\btak(e|es|en|ing) away\b": "remove",
    r"\bgiv(e|es|en|ing) back\b": "restore the original",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\b(made|built|written|proven|started) anew\b": "recreated, rebuilt, rewritten, validated again, restarted",
    r"\bwithout a way out\b": "air-gapped",
    r"\bround in a circle\b": "dependency cycle",
    r"(?<!there )\bis no (folder|file|time|index|mapping|list)\b": "is not a ...",
    r"\bis not known here\b": "is not supported here",
    r"\bis there twice\b": "is defined twice",
    r"\b(hang|rest)s on\b": "depends on, is based on",
    r"\bthe matrix blocks it\b": "blocked by compatibility rule RULE",
    r"\bwho said so\b": "where each value is set",
    r"\bas the policy says\b": "matches the policy; drift",
    r"\bwalk the chain\b": "diagnose",
    r"\bbetween them and us\b": "possible man-in-the-middle attack",
    r"\blets? us in\b": "authentication failed",
    r"\bout of breath\b": "overloaded",
    r"\bapply with the states?\b": "(state NAME): gpustate apply POLICY -l NODE",
    r"\bprove anew\b|\bnot proven\b": "validate again, not validated",
    r"\bevery link holds\b": "all checks passed",
    r"\bbrings? it no more\b": "the next boot does not load it",
    r"\bleave it away\b": "omit it",
    r"\bnobody is there\b": "stdin is not a terminal",
    r"\ba mistake in (gpustate|the state)\b": "a bug in ...",
    r"\bso that nothing starts it\b": "so nothing can start it",
    r"\bcopy back what is kept\b": "restore the original",
    r"\bh(a|u)ngs? up\b|\bhung up\b": "closed the connection, disconnected",
    r"\bsigns? of life\b": "keepalive request, reply",
    r"\bthrow-?away (nodes?|machines?)\b": "disposable test nodes",
    r"\b[Dd]ealt out\b": "assigned in turn",
    r"\bhalf-made\b": "incomplete",
    r"\bthe only room\b": "the only package",
    r"\bwhile it looks\b": "while it reads facts",
    r"\bis broken off\b": "is interrupted",
    r"\bcan stand wherever\b": "can be used as",
    r"\bgiven back\b": "restored, released",
    r"\b[Ss]omebody else\b": "a foreign setting, another program, another run",
    r"\b(drop|dropped) in silence\b": "silently drop",
    r"\bis not beside\b": "was not found",
    r"\bdo(es)? nothing while\b": "has no effect while",
    r"\bask for nothing\b": "no effect at these values",
    r"\bstands? twice\b": "is a duplicate",
    r"\bhas no sense\b": "is invalid",
    r"\b(cannot|can) do MIG\b": "does not support MIG",
    r"\blies on another\b": "overlaps another one",
    r"\bcosts nothing that runs\b": "no disruption",
    r"\btake it out\b": "remove it",
    r"\bwho wins\b": "which takes precedence",
    r"\bclass (Fate|Shelf|Beside)\b": "Support, CompanionStore, ReferenceResolver",
    r"\bwords of the node\b": "the node's replies",
    r"\bset [a-z_.]+ = (['\[{]|True|False)": "set NAME: VALUE, as in a policy's YAML",
}


def _texts() -> dict[Path, str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *FOLDERS], cwd=TOP, capture_output=True, check=False
    ).stdout.decode()
    names = [name for name in listed.split("\0") if name] or [
        str(path.relative_to(TOP)) for folder in FOLDERS for path in (TOP / folder).rglob("*")
    ]
    return {
        TOP / name: (TOP / name).read_text("utf-8")
        for name in names
        if name.endswith((".py", ".sh", ".md", ".yml", ".yaml"))
        and (TOP / name).is_file()
        and not (TOP / name).is_symlink()
    }


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    found = _texts()
    assert len(found) > 500
    return found


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_of_the_old_dialect_is_written_nowhere(
    texts: dict[Path, str], phrase: str
) -> None:
    places = [
        f"{path.relative_to(TOP)}:{text.count(chr(10), 0, found.start()) + 1}"
        for path, text in texts.items()
        for found in re.finditer(phrase, text)
    ]
    assert places == [], f"write: {PHRASES[phrase]}"
