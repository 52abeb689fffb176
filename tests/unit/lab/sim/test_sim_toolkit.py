"""The simulated nvidia-ctk: its configuration file and the YAML it writes."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpustate.lab.sim.native import PAYLOAD

NAMES = ("cdispec", "toolkitconfig")


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.syspath_prepend(str(PAYLOAD / "toolkit"))
    for name in NAMES:
        sys.modules.pop(name, None)
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("disable-require", "true", True),
        ("accept-nvidia-visible-devices-as-volume-mounts", "true", True),
        ("nvidia-container-runtime.log-level", "debug", "debug"),
        ("nvidia-container-runtime.runtimes", "crun,runc", ["crun", "runc"]),
        ("nvidia-container-runtime.modes.cdi.default-kind", "example.com/gpu", "example.com/gpu"),
        ("nvidia-container-cli.no-cgroups", "true", True),
        ("features.disable-imex-channel-creation", "true", True),
    ],
)
def test_setting_a_key_changes_that_key_alone(
    toolkit: dict[str, Any], key: str, value: str, wanted: object
) -> None:
    config = toolkit["toolkitconfig"]
    before = tomllib.loads(config.DEFAULT)
    text = config.edited(config.DEFAULT, key, value)
    after = tomllib.loads(text)
    table = after
    *path, name = key.split(".")
    for part in path:
        table = table[part]
    assert table.pop(name) == wanted
    table = before
    for part in path:
        table = table.setdefault(part, {})
    table.pop(name, None)
    assert after == before
    assert config.edited(text, key, value) == text


def test_a_table_that_cannot_be_is_refused(toolkit: dict[str, Any]) -> None:
    config = toolkit["toolkitconfig"]
    with pytest.raises(ValueError, match=r"invalid config option: nope\.key"):
        config.edited(config.DEFAULT, "nope.key", "1")


plain = st.text("abc/:.-=0 1", min_size=1, max_size=8).filter(
    lambda text: text == text.strip(" -:")
)
trees = st.recursive(plain, lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.sampled_from(["kind", "name", "path"]), inner, min_size=1), max_leaves=8)  # fmt: skip


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["devices", "containerEdits"]), trees, min_size=1))
def test_the_yaml_it_writes_is_read_back_the_same(
    toolkit: dict[str, Any], data: dict[str, Any]
) -> None:
    assert yaml.safe_load(toolkit["cdispec"].to_yaml(data)) == data


def test_device_names_are_read_from_yaml_and_json_alike(
    toolkit: dict[str, Any], tmp_path: Path
) -> None:
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
            for name in ("0", "all")
        ],
        "containerEdits": {"env": ["A=b"], "hooks": [{"hookName": "createContainer"}]},
    }
    (tmp_path / "a.yaml").write_text("---\n" + toolkit["cdispec"].to_yaml(spec))
    (tmp_path / "a.json").write_text(json.dumps(spec))
    for name in ("a.yaml", "a.json"):
        found = toolkit["cdispec"].device_names(str(tmp_path / name))
        assert found == ["nvidia.com/gpu=0", "nvidia.com/gpu=all"]
