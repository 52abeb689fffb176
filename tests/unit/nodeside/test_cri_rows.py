"""What is printed of a runtime's answer, and how it is judged."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate.nodeside import cri, cri_rows
from gpustate.probes import cri_status

RUNC = {"runtimeType": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
NVIDIA = {
    "runtimeType": "io.containerd.runc.v2",
    # Of containerd with a file of kubespray's.
    "options": {"binaryName": "/usr/bin/nvidia-container-runtime", "systemdCgroup": True},
}


class Runtime:
    """Stands in for :mod:`cri`."""

    CriError = cri.CriError

    def __init__(self, *answers: cri.Status | cri.CriError) -> None:
        self.answers = list(answers)

    def status(self, socket: str, timeout_s: float) -> cri.Status:
        answer = self.answers.pop(0)
        if isinstance(answer, cri.CriError):
            raise answer
        return answer


def judged(*answers: cri.Status | cri.CriError, kubelet: str = "") -> cri_status.CriStatus:
    keys: dict[str, list[str]] = {"cri_socket": ["/run/x.sock"], "kubelet_cgroup": [kubelet]}
    for row in cri_rows.rows(Runtime(*answers), "/run/x.sock"):
        key, _, value = row.partition("=")
        keys.setdefault(key, []).append(value)
    found = cri_status.read(keys)
    assert found is not None
    return found


def status(default: str = "runc", **changes: Any) -> cri.Status:
    config = {
        "containerd": {"defaultRuntimeName": default, "runtimes": {"runc": RUNC, "nvidia": NVIDIA}}
    }
    known: dict[str, Any] = {"name": "containerd", "version": "v1.7.24", "info": {"config": config}}
    return cri.Status(**{**known, **changes})


def test_a_runtime_that_serves_the_handler_is_not_accused() -> None:
    found = judged(status(conditions=(("NetworkReady", False, "cni plugin not initialized"),)))
    assert (found.outcome, found.default) == ("ok", "runc")
    assert (
        found.dead("containerd")
        == found.missing_handler("nvidia")
        == found.cgroup_drivers("nvidia")
        == ""
    )
    nvidia = found.handler("nvidia")
    assert nvidia is not None
    assert (nvidia.binary, nvidia.driver) == ("/usr/bin/nvidia-container-runtime", "systemd")


def test_a_runtime_without_its_cri_service_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cri_rows.shutil, "which", lambda name: None)
    found = judged(cri.CriError("unknown service runtime.v1.RuntimeService", unserved=True))
    assert "no pod can start: unknown service" in found.dead("containerd")


def test_one_that_does_not_answer_or_is_not_ready_is_dead() -> None:
    assert "does not answer: slow" in judged(cri.CriError("slow")).dead("containerd")
    broken = status(conditions=(("RuntimeReady", False, "NotReady: disk"),))
    assert "not ready: NotReady: disk" in judged(broken).dead("CRI-O")


def test_one_that_is_just_starting_is_asked_again() -> None:
    assert judged(cri.CriError("server is not initialized yet"), status()).outcome == "ok"


def test_a_handler_that_the_process_does_not_have_is_named_with_those_it_has() -> None:
    assert judged(status()).missing_handler("other") == "no other; it has nvidia, runc"
    # CRI-O before 1.31 lists none: nothing is known.
    assert judged(cri.Status(name="cri-o", version="1.30.0")).missing_handler("nvidia") == ""


@pytest.mark.parametrize(
    ("driver", "kubelet", "words"),
    [
        ("", "systemd|/var/lib/kubelet/config.yaml", ""),
        (
            "",
            "cgroupfs|/var/lib/kubelet/config.yaml",
            "kubelet (/var/lib/kubelet/config.yaml): cgroupfs",
        ),
        ("systemd", "cgroupfs|/var/lib/kubelet/config.yaml", ""),  # it takes the runtime's word
    ],
)
def test_kubelet_and_runtimes_have_to_have_one_cgroup_driver(
    driver: str, kubelet: str, words: str
) -> None:
    found = judged(status(cgroup_driver=driver), kubelet=kubelet).cgroup_drivers("nvidia")
    assert words in found
    assert bool(words) == bool(found)


def test_what_cannot_be_asked_is_unknown() -> None:
    assert cri_status.read({}) is None
    found = cri_status.read({"cri_socket": ["/run/x.sock"]})
    assert found is not None
    assert found.dead("containerd") == ""
