"""The device plugin sees its GPUs again after a quarantine; a foreign one is named and left alone."""

from __future__ import annotations

import itertools

from gpustate.documents import Json
from gpustate.manifests import ClusterSettings
from gpustate.manifests.build import build
from gpustate.reconcile.plugin_restart import PluginRestart, leaves_out

IMAGES = {"devicePlugin": "p:v1", "gfd": "g:v1"}


def template() -> Json:
    items = build(ClusterSettings(), IMAGES)
    plugin = next(
        one for one in items if one["metadata"]["name"].startswith("nvidia-device-plugin-d")
    )
    spec: Json = plugin["spec"]["template"]["spec"]
    return spec


def plugin(uid: str, spec: Json | None = None, *, ready: bool = True) -> Json:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"namespace": "gpu-operator", "name": f"plugin-{uid}", "uid": uid},
        "spec": spec or template(),
        "status": {"phase": "Running", "conditions": conditions},
    }


class Api:
    """A Node whose DaemonSet controller replaces a deleted pod at once."""

    def __init__(self, *pods: Json, comes_back: bool = True) -> None:
        self.pods, self.comes_back = list(pods), comes_back
        self.deleted: list[str] = []

    def node(self, name: str) -> Json:
        return {"status": {"allocatable": {"nvidia.com/gpu": "7" if self.deleted else "8"}}}

    def pods_on(self, node: str) -> list[Json]:
        return list(self.pods)

    def delete(self, pod: Json) -> None:
        self.deleted.append(pod["metadata"]["name"])
        self.pods = [plugin("new", ready=self.comes_back)]


def restart(api: Api) -> tuple[bool, str]:
    clock = itertools.count(step=5)
    return PluginRestart(
        api, timeout_s=60, sleep=lambda seconds: None, clock=lambda: float(next(clock))
    ).restart("gpu1")


def test_only_our_template_leaves_gpus_out() -> None:
    assert leaves_out(plugin("a"))
    spec = template()
    spec["containers"][0]["command"] = ["nvidia-device-plugin"]
    assert not leaves_out(plugin("a", spec))


def test_the_pod_is_replaced_and_the_new_offer_is_named() -> None:
    api = Api(plugin("old"))
    assert restart(api) == (
        True,
        "the device plugin was restarted; the Node offers nvidia.com/gpu: 7",
    )
    assert api.deleted == ["plugin-old"]


def test_a_foreign_plugin_is_named_and_not_deleted() -> None:
    spec = template()
    spec["containers"][0]["command"] = ["nvidia-device-plugin"]
    api = Api(plugin("old", spec))
    done, words = restart(api)
    assert not done
    assert "gpu-operator/plugin-old is not gpustate's" in words
    assert "kubectl cordon gpu1" in words
    assert not api.deleted


def test_without_a_plugin_nothing_is_to_be_done() -> None:
    assert restart(Api()) == (True, "no pod of the device plugin is on the Node")


def test_a_pod_that_does_not_become_ready_is_an_error() -> None:
    done, words = restart(Api(plugin("old"), comes_back=False))
    assert not done
    assert "not ready after 60 s: phase Running" in words


def test_a_run_that_is_to_stop_does_not_wait_for_the_new_pod() -> None:
    api, slept = Api(plugin("old"), comes_back=False), list[float]()
    clock = itertools.count(step=2)
    waits = PluginRestart(api, 60, lambda: bool(slept), slept.append, lambda: float(next(clock)))
    done, words = waits.restart("gpu1")
    assert (done, slept) == (False, [1.0])
    assert "not ready after 4 s: phase Running" in words
