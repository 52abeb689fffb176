"""Reports as SARIF 2.1.0, which code hosts show next to the lines of a change.

Notes are SARIF's ``note``. Paths are written as the user passed them, as an escaped URI; code hosts
resolve relative ones in the repository.

Sources:
    OASIS, Static Analysis Results Interchange Format (SARIF) 2.1.0, sections 3.13 to 3.52.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from gpustate.documents import Json
from gpustate.gpu_operator.lint.finding import RULES, Finding, Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(reports: Sequence[Report], version: str) -> Json:
    """One run with the findings of all files."""
    ids = list(RULES)
    findings = [finding for report in reports for finding in report.findings]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gpustate lint",
                        "semanticVersion": version,
                        "rules": [
                            {
                                "id": rule.id,
                                "shortDescription": {"text": rule.about},
                                "defaultConfiguration": {"level": rule.level.value},
                            }
                            for rule in RULES.values()
                        ],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, ids) for finding in findings],
            }
        ],
    }


def _result(finding: Finding, ids: Sequence[str]) -> Json:
    place: Json = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(finding.file)},
            "region": {"startLine": max(1, finding.line)},
        }
    }
    if finding.path:
        name = finding.path
        place["logicalLocations"] = [{"fullyQualifiedName": name, "kind": "member"}]
    return {
        "ruleId": finding.rule,
        "ruleIndex": ids.index(finding.rule),
        "level": finding.level.value,
        "message": {"text": finding.message + (f"; {finding.fix}" if finding.fix else "")},
        "locations": [place],
    }


def _uri(file: str) -> str:
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
