"""The cgroup driver is in containerd's own configuration, whatever its version."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gpustate_lab import containerd

DATA = Path(__file__).parents[2] / "data/containerd"
DEFAULTS = sorted(DATA.glob("*-config-default.toml"))
DEBIAN = """\
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
"""


def configure(root: Path, text: str | None, driver: str) -> str | None:
    path = root / "etc/containerd/config.toml"
    if text is not None:
        path.parent.mkdir(parents=True)
        path.write_text(text)
    containerd.configure(root, cgroup_driver=driver)
    return path.read_text() if path.exists() else None


@pytest.mark.parametrize("default", DEFAULTS, ids=lambda path: path.name)
def test_a_default_configuration_differs_in_one_line_as_with_kubeadm(
    default: Path, tmp_path: Path
) -> None:
    before = default.read_text().splitlines()
    after = (configure(tmp_path, default.read_text(), "systemd") or "").splitlines()
    assert [line.strip() for line in after if line not in before] == ["SystemdCgroup = true"]
    # Some releases do not print the setting.
    assert [line.strip() for line in before if line not in after] in (["SystemdCgroup = false"], [])
    assert tomllib.loads("\n".join(after))


def test_a_file_without_the_runtime_gets_it(tmp_path: Path) -> None:
    after = configure(tmp_path, DEBIAN, "systemd")
    assert after is not None
    cri = tomllib.loads(after)["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri == {
        "cni": {"bin_dir": "/usr/lib/cni"},
        "containerd": {
            "runtimes": {
                "runc": {
                    "runtime_type": "io.containerd.runc.v2",
                    "options": {"SystemdCgroup": True},
                }
            }
        },
    }


@pytest.mark.parametrize("text", [None, DEBIAN, DEFAULTS[0].read_text()])
def test_cgroupfs_leaves_the_packages_file(text: str | None, tmp_path: Path) -> None:
    assert configure(tmp_path, text, "cgroupfs") == text


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ("version = 2\n", "io.containerd.grpc.v1.cri"),
        ("version = 3\n", "io.containerd.cri.v1.runtime"),
        ("", "cri"),
    ],
)
def test_a_setting_is_in_the_section_of_the_configuration_version(
    text: str, section: str, tmp_path: Path
) -> None:
    after = configure(tmp_path, text, "systemd") or ""
    assert list(tomllib.loads(after)["plugins"]) == [section]
