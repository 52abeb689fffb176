"""Secrets of other programs' files and logs are masked by their names; the rest of the text stays."""

from __future__ import annotations

import time

import pytest

from gpustate.formats import masking
from gpustate.formats.foreign_secrets import scrub, scrub_data


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
        # The next eighteen and more stand for what files and logs of nodes have.
        "AWS_SECRET_KEY=hunter2-x",
        "secret_key: hunter2-x",
        "pwd=hunter2-x",
        "pass=hunter2-x",
        "export MYSQL_PWD=hunter2-x,hunter2-y",
        "//registry.example/:_authToken=hunter2-x",
        "_auth = hunter2-x",
        "password: |\n  hunter2-x\n  hunter2-y\nuser: ops",
        "password:\n  hunter2-x\nuser: ops",
        "password: hunter2-x with hunter2-y",
        "tokens:\n- hunter2-x\n- hunter2-y\nuser: ops",
        '{"name": "MY_TOKEN", "value": "hunter2-x"}',
        "env:\n- name: NGC_API_KEY\n  value: hunter2-x\n- name: A\n  value: b",
        "{Name:MY_TOKEN Value:hunter2-x ValueFrom:nil}",
        'password = ["hunter2-x", "hunter2-y"]',
        'password = [\n  "hunter2-x",\n]',
        'token = """\nhunter2-x\n"""',
        "got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.aHVudGVyMi14OmE for it",
        "redis://:hunter2-x@cache:6379/0",
        "postgres://ops:hunter2-x@db/x",
        "ssh://ops:hunter2-x@host",
        "HTTP_PROXY=ops:hunter2-x@proxy:3128",
        "https://s3.example/a?X-Amz-Signature=hunter2-x&X-Amz-Date=1",
        "https://blob.example/a?sv=1&sig=hunter2-x",
        "https://hooks.slack.com/services/T01/B01/hunter2-x",
        "https://discord.example/api/webhooks/1/hunter2-x",
        "https://mirror.example/hunter2Xhunter2Xhunter2/deb",
        "Cookie: a=hunter2-x; b=hunter2-y",
        "login --registry-password-stdin hunter2-x",
        '["--password", "hunter2-x"]',
        "curl -u ops:hunter2-x https://mirror.example",
        '[plugins."io.containerd.cri.v1.images".registry.headers]\n  X-Any = ["hunter2-x"]\n  Y = ["hunter2-y"]\n[x]\n  a = 1',
        '[plugins."a".registry.configs."r.example".auth]\n  identity = "hunter2-x"',
        '[host."https://r.example".header]\n  x-registry-secret-key = "hunter2-x"',
        "headers:\n  X-Any: hunter2-x\nuser: ops",
        '"HttpHeaders": {"X-Any": "hunter2-x", "Y": ["a}", "hunter2-y"]}, "user": "ops"',
        '"auths": {"r.example": {"auth": "hunter2-x"}}',
        r'level=info msg="Start cri" config="{\"headers\":{\"X-Any\":[\"hunter2-x\"]},\"password\":\"hunter2-y\"}"',
        "registry:{Headers:map[X-Any:[hunter2-x]] ConfigPath:/etc}",
        '{"proxies": {"https-proxy": "http://u:hunter2-x@proxy"}}',
        "Authorization: AWS4-HMAC-SHA256 Credential=hunter2/x, Signature=hunter2-x",
    ],
)
def test_a_secret_is_masked_by_its_name(text: str) -> None:
    shown = scrub(f"before\n{text}\n")
    assert masking.MASK in shown
    assert "hunter2" not in shown
    assert "aHVudGVy" not in shown
    assert shown.startswith("before\n")
    assert scrub(shown) == shown


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
        "imagePullSecrets:\n- name: regcred\nuser: ops\n",
        "image: nvcr.io/nvidia/cuda:12.4@sha256:0123456789abcdef\n",
        "tokens: null\n",
        "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/\n",
        "if token == expected: bypass(compass)\n",
        'runtimes = {"nvidia" = {path = "/usr/bin/nvidia-container-runtime"}}\n',
        "key: value\nauthentication:\n  anonymous:\n    enabled: false\n",
        "GPU-8f3c0f6a-1b2c-4d5e-8f90-a1b2c3d4e5f6 is 0000:1b:00.0\n",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert scrub(text) == text


def test_what_stands_beside_a_secret_stays() -> None:
    text = '[registry.headers]\n  X-Any = ["hunter2"]\n[metrics]\n  address = "127.0.0.1:1"\n'
    assert scrub(text) == text.replace("hunter2", "(secret)").replace('"(secret)"', "(secret)")
    assert scrub("tokens:\n- hunter2\nuser: ops\n") == "tokens:\n- (secret)\nuser: ops\n"
    assert scrub('{"auth": "hunter2", "user": "ops"}') == '{"auth": "(secret)", "user": "ops"}'


def test_data_are_masked_by_the_names_in_them() -> None:
    data = {
        "env": [{"name": "MY_TOKEN", "value": "hunter2"}, {"name": "A", "value": "b"}],
        "httpHeaders": [{"name": "X-Any", "value": "hunter2"}],
        "password": ["hunter2"],
        "tokens": True,
        "user": "ops",
    }
    assert scrub_data(data) == {
        "env": [{"name": "MY_TOKEN", "value": "(secret)"}, {"name": "A", "value": "b"}],
        "httpHeaders": [{"name": "(secret)", "value": "(secret)"}],
        "password": ["(secret)"],
        "tokens": True,
        "user": "ops",
    }


def test_a_large_log_is_read_in_time() -> None:
    line = (
        'time="x" level=info msg="pulled a?token=x" key=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA {[("\n'
    )
    start = time.process_time()
    scrub(line * 20_000 + "A" * 1_000_000)
    assert time.process_time() - start < 20
