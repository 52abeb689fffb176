"""An ordering cycle of systemd, by which docker runs now and boots may not start it: as NVIDIA's toolkit 1.19.0 made one.

Real: systemd and its verdict, docker, NVIDIA's toolkit. Simulated: GPUs and their driver.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import gpustate
from labnodes import LabFactory

from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]

POLICY = """\
format: gpustate.policy/1
states:
  preflight:
  nouveau:
  driver-repository:
  driver: {branch: 580}
  persistenced:
  toolkit-repository:
  container-toolkit:
  docker:
  cdi:
  validator:
"""
#: The order of the refresh in 1.19.0, and a drop-in as 1.20 brings one.
CYCLE = """
sed -i 's/^\\[Unit\\]/[Unit]\\nAfter=multi-user.target/' /usr/lib/systemd/system/nvidia-cdi-refresh.service
mkdir -p /etc/systemd/system/docker.service.d
printf '[Unit]\\nAfter=nvidia-cdi-refresh.service\\nWants=nvidia-cdi-refresh.service\\n' >/etc/systemd/system/docker.service.d/cdi.conf
systemctl daemon-reload
"""
LEFT_OUT = "each boot leaves out one of "


@pytest.fixture(scope="module")
def lab(lab_factory: LabFactory) -> Lab:
    return lab_factory(LabSpec(nodes=1, images=("debian13-runtimes",), gpus=("2xH100",)))


def test_an_apply_does_not_report_convergence_that_ends_with_the_boot(
    lab: Lab, tmp_path: Path
) -> None:
    (node,) = lab.nodes
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)

    def apply(code: int) -> str:
        ran = gpustate("apply", policy, "-i", lab.inventory, "--yes", code=code)
        return ran.out + ran.err

    apply(0)
    node.run(CYCLE)
    assert LEFT_OUT in apply(3), "docker runs, and only the next boot fails"
    assert node.run("systemctl is-active docker").stdout.strip() == "active"
    node.reboot()
    explained = gpustate("explain", node.name, "-i", lab.inventory).out
    assert LEFT_OUT in explained
    assert "nvidia-cdi-refresh.service" in explained
    node.run(
        "sed -i '/^After=multi-user.target$/d' /usr/lib/systemd/system/nvidia-cdi-refresh.service; systemctl daemon-reload"
    )
    apply(0)
    assert LEFT_OUT not in gpustate("explain", node.name, "-i", lab.inventory).out
    node.reboot()
    assert node.run("systemctl is-active docker").stdout.strip() == "active"
