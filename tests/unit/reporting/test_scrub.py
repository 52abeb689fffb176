"""Secrets of other programs' files and logs are masked by their names; the rest of the text stays."""

from __future__ import annotations

import pytest

from gpustate.formats import masking
from gpustate.reporting.scrub import scrub


@pytest.mark.parametrize(
    "text",
    [
        'password = "hunter2-x"',
        "  password: hunter2-x",
        '"auth": "hunter2-x",',
        "'identitytoken': 'hunter2-x'",
        "REGISTRY_PASSWORD=hunter2-x",
        "--api-key hunter2-x",
        "--password=hunter2-x --verbose",
        "Authorization: Bearer hunter2-x-long",
        "curl -H 'Authorization: Basic aHVudGVyMi14OmE='",
        "https://ops:hunter2-x@mirror.example/x",
        "https://mirror.example/x?access_token=hunter2-x&a=1",
        'Environment="NGC_API_KEY=hunter2-x"',
        "client-key-data: hunter2-x",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2-x\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2-x and the rest is cut",
        'a = "b\\"" password = "c\\"hunter2-x"',
    ],
)
def test_a_secret_is_masked_by_its_name(text: str) -> None:
    shown = scrub(f"before\n{text}\n")
    assert masking.MASK in shown
    assert "hunter2" not in shown
    assert "aHVudGVy" not in shown
    assert shown.startswith("before\n")


def test_a_known_secret_is_masked_wherever_it_is() -> None:
    masking.remember("Kn0wn-secret")
    assert scrub("x Kn0wn-secret y") == "x (secret) y"


@pytest.mark.parametrize(
    "text",
    [
        'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\n  enable_cdi = true\n',
        "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n",
        "driver 580.65.06 amd64\n",
        "automountServiceAccountToken: false\n",
        "password:\n  from: elsewhere\n",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert scrub(text) == text
