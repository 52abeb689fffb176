"""JUnit's XML."""

from __future__ import annotations

from xml.etree import ElementTree

from gpustate.cli.validate import as_junit


def test_what_xml_cannot_hold_is_written_out() -> None:
    check = {
        "name": "cuda",
        "outcome": "failed",
        "evidence": "a\x1b[2J\x00b",
        "remedy": "x\ud800\ny",
    }
    document = {"nodes": [{"name": "n1", "status": "failed", "checks": [check]}]}
    suite = ElementTree.fromstring(as_junit(document).encode())
    failure = suite.find(".//failure")
    assert failure is not None
    assert failure.get("message") == "a\\x1b[2J\\x00b"
    assert failure.text == "x\\ud800\ny"
