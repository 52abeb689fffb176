"""A hook that failed is named with its program, by what NVIDIA's runtime adds to the same request."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpustate.diagnosis import container_checks
from gpustate.nodeside import container_hooks, container_validation, pod_image

INIT = "ctr: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "
#: runc 1.1 names no stage.
OLD = f"{INIT}error running hook #1: error running hook: exit status 4, stdout: , stderr: quota reached: unknown"
NEW = f"{INIT}error running createContainer hook #1: exit status 4, stdout: , stderr: quota reached: unknown"
HOOKS = {
    "createContainer": [
        "/usr/bin/nvidia-cdi-hook create-symlinks",
        "/usr/bin/nvidia-cdi-hook update-ldcache",
    ]
}

#: As NVIDIA's runtime: adds hooks by the request, then hands over to a program that refuses the bundle.
RUNTIME = """#!{python}
import json, pathlib, sys
assert sys.argv[3] == "create", sys.argv
path = pathlib.Path(sys.argv[5], "config.json")
config = json.loads(path.read_text())
hook = "/usr/bin/nvidia-cdi-hook"
all_gpus = "NVIDIA_VISIBLE_DEVICES=all" in config["process"]["env"]
cdi = "nvidia.com/gpu=all" in config["annotations"].values()
mounted = "/var/run/nvidia-container-devices/all" in [one["destination"] for one in config["mounts"]]
kind = [word for word, holds in (("envvar", all_gpus), ("cdi", cdi), ("mounts", mounted)) if holds]
config["hooks"] = {{"createContainer": [{{"path": hook, "args": ["nvidia-cdi-hook", *kind, "--more"]}}]}}
path.write_text(json.dumps(config))
sys.exit("runc create failed: rootfs does not exist")
"""


@pytest.mark.parametrize("error", [OLD, NEW])
def test_a_failed_hook_is_named_by_its_number(error: str) -> None:
    text = container_hooks.named(error, HOOKS)
    assert text == f"{error}; hook #1 is /usr/bin/nvidia-cdi-hook update-ldcache"
    assert container_checks.classify(text).name == "hook-failed"
    result = container_checks.ContainerResult("containerd", error=text)
    found = container_checks.failure(result, ())
    assert found is not None
    assert "quota reached" in found.evidence
    assert "hook #1 is /usr/bin/nvidia-cdi-hook update-ldcache" in found.evidence


def test_hooks_of_several_stages_with_one_number_are_all_named_where_runc_names_no_stage() -> None:
    hooks = {**HOOKS, "prestart": ["/a", "/b check"]}
    assert container_hooks.named(OLD, hooks).endswith(
        "; hook #1 is /b check or /usr/bin/nvidia-cdi-hook update-ldcache"
    )
    assert "/b check" not in container_hooks.named(NEW, hooks)


@pytest.mark.parametrize(
    ("error", "hooks"),
    [(NEW, {}), (NEW, {"createContainer": ["/only"]}), ("ctr: something new", HOOKS)],
    ids=["no hooks", "fewer hooks", "no hook failed"],
)
def test_a_hook_that_cannot_be_known_is_not_named(error: str, hooks: container_hooks.Hooks) -> None:
    assert container_hooks.named(error, hooks) == error


@pytest.mark.parametrize(
    ("text", "hooks"),
    [("", {}), ("[]", {}), ('{"hooks": 3}', {}), ('{"hooks": {"prestart": [3]}}', {})],
)
def test_a_specification_that_cannot_be_read_has_no_hooks(
    tmp_path: Path, text: str, hooks: container_hooks.Hooks
) -> None:
    (tmp_path / "config.json").write_text(text)
    assert container_hooks.read(str(tmp_path)) == hooks


@pytest.mark.parametrize(
    ("how", "kind"),
    [("envvar", "envvar"), ("mounts", "mounts"), ("annotation", "cdi"), ("device", "cdi")],
)
def test_the_hooks_are_those_of_the_same_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, kind: str
) -> None:
    binary = tmp_path / "nvidia-container-runtime"
    binary.write_text(RUNTIME.format(python=sys.executable))
    binary.chmod(0o755)
    bundles = tmp_path / "run"
    bundles.mkdir()
    real = container_hooks.tempfile.mkdtemp
    monkeypatch.setattr(
        container_hooks.tempfile, "mkdtemp", lambda prefix, dir: real(prefix=prefix, dir=bundles)
    )
    error = NEW.replace("#1", "#0")
    text = container_validation.with_hook(error, str(binary), how)
    assert text == f"{error}; hook #0 is /usr/bin/nvidia-cdi-hook {kind}"
    assert not list(bundles.iterdir())


def test_a_pods_failed_hook_is_named_by_a_request_for_cdi_devices_else_by_the_nodes_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooks = {"device": HOOKS, "envvar": {"prestart": ["/first", "/usr/bin/legacy-hook"]}}
    known = ["device", "envvar"]
    monkeypatch.setattr(container_validation, "request", lambda: "envvar")
    monkeypatch.setattr(
        container_validation,
        "with_hook",
        lambda error, binary, how: container_hooks.named(error, hooks[how] if how in known else {}),
    )
    assert pod_image.name_hook(NEW) == f"{NEW}; hook #1 is /usr/bin/nvidia-cdi-hook update-ldcache"
    known.remove("device")
    assert pod_image.name_hook(OLD) == f"{OLD}; hook #1 is /usr/bin/legacy-hook"
    known.clear()
    assert pod_image.name_hook(OLD) == OLD


def test_without_a_failed_hook_nothing_is_run() -> None:
    assert container_validation.with_hook("no space left", "/no/such/program", "envvar") == (
        "no space left"
    )


def test_a_runtime_that_is_missing_names_no_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = container_hooks.tempfile.mkdtemp
    monkeypatch.setattr(
        container_hooks.tempfile, "mkdtemp", lambda prefix, dir: real(prefix=prefix, dir=tmp_path)
    )
    assert container_validation.with_hook(NEW, "/no/such/program", "envvar") == NEW
    assert json.dumps(container_hooks.read(str(tmp_path))) == "{}"
