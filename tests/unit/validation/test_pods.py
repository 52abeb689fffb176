"""The link ``pod`` from a node's session to its result, with stubs for the node and the API."""

from __future__ import annotations

import json
from typing import cast

import pytest
from fakecluster import FakeApi, holder, node

from gpustate.cluster import kubeconfig, podtest
from gpustate.cluster import pods as judging
from gpustate.cluster.api import Api
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.core.queries import Answer
from gpustate.diagnosis.chain import Check
from gpustate.engine import fleet
from gpustate.errors import EXIT_VALIDATION, ConnectionFailed, InventoryError
from gpustate.formats.nvml_report import Gpu, NvmlFacts
from gpustate.nodeside.pod_image import MARK
from gpustate.validation import pods

MACHINE = "boot_id=boot-gpu1\nmachine_id=machine-gpu1\nsystem_uuid=\nkubelet_endpoint=\nsocket /run/containerd/containerd.sock=1\n"
IMAGE = "127.0.0.1:4711/gpustate-validate-pod:1"
IMPORTED = f"...\n{MARK}{json.dumps({'image': IMAGE, 'command': ['/usr/bin/python3', 'x.py']})}\n"


class FakeSession:
    """A node's shell, by the first words that a script has."""

    answers: dict[str, Answer]
    scripts: list[str]

    def __init__(self, node: InventoryNode) -> None:
        self.node = node

    def connect(self) -> None:
        if self.node.name == "away":
            raise ConnectionFailed("connection refused")

    def close(self) -> None:
        pass

    def shell(self, script: str, *, timeout_s: float = 30.0) -> Answer:
        self.scripts.append(script)
        return next(answer for word, answer in self.answers.items() if word in script)

    def answer(self, queries: object) -> tuple[Answer, ...]:
        raise AssertionError("its GPUs are stubbed")


Answers = dict[str, Answer]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Answers:
    for name in ("_POLL_S", "_UNSCHEDULABLE_S", "_REGISTER_S", "_DELETE_S"):
        monkeypatch.setattr(podtest, name, 0.01)
    monkeypatch.setattr(fleet, "Session", FakeSession)
    monkeypatch.setattr(pods, "_usable", lambda node: gpus(8))
    FakeSession.scripts = []
    FakeSession.answers = {
        "boot_id": Answer(0, MACHINE.encode()),
        " import ": Answer(0, IMPORTED.encode()),
        " remove ": Answer(0, b""),
    }
    return FakeSession.answers


def gpus(count: int) -> NvmlFacts:
    found = tuple(Gpu(index, f"GPU-{index}") for index in range(count))
    return NvmlFacts(source="nvml", gpus=found)


def verbs() -> list[str]:
    """What was run on the node, in order."""
    words = ("boot_id", " import ", " hook ", " remove ")
    return [word.strip() for script in FakeSession.scripts for word in words if word in script]


def run(api: FakeApi, name: str = "gpu1") -> Check:
    nodes = [InventoryNode(name, vars={kubeconfig.PATH: "k"}), InventoryNode("plain")]
    request = pods.Request(nodes, {kubeconfig.Kubeconfig("k"): cast(Api, api)})
    found = pods.run(request)
    assert list(found) == [name], "a node without a kubeconfig has no such link"
    return found[name]


def test_a_pod_runs_with_the_nodes_own_image_which_is_removed(shell: Answers) -> None:
    api = FakeApi()
    assert run(api).outcome == "ok"
    assert verbs() == ["boot_id", "import", "remove"]
    (container,) = api.created[0]["spec"]["containers"]
    assert container["command"][:2] == ["/usr/bin/python3", "x.py"]
    assert container["image"] == IMAGE


def test_a_node_that_offers_other_gpus_than_nvml_lists_fails(
    shell: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "_usable", lambda node: gpus(7))
    api = FakeApi()
    check = run(api)
    assert check.failed
    assert "the Node offers 8 nvidia.com/gpu; the machine has 7 GPUs for use" in check.evidence
    assert verbs() == ["boot_id"]
    assert not api.created


def test_a_node_without_a_kubelet_needs_no_pod(shell: Answers) -> None:
    text = MACHINE.replace("kubelet_endpoint=\n", "")
    shell["boot_id"] = Answer(0, text.replace("gpu1", "gpu9").encode())
    check = run(FakeApi())
    assert (check.outcome, check.evidence) == ("not applicable", "no kubelet runs on this node")


def test_a_node_of_the_cluster_whose_kubelet_is_stopped_is_broken(shell: Answers) -> None:
    shell["boot_id"] = Answer(0, MACHINE.replace("kubelet_endpoint=\n", "").encode())
    check = run(FakeApi())
    assert check.failed
    assert (
        check.evidence == "no kubelet runs on the node, which is a Node of the cluster: Node gpu1"
    )
    assert "journalctl -u kubelet" in check.remedy


def test_nothing_is_imported_while_all_gpus_are_in_use(shell: Answers) -> None:
    api = FakeApi(others=[holder("8")])
    check = run(api)
    assert check.outcome == "not applicable"
    assert "all GPUs are in use" in check.evidence
    assert verbs() == ["boot_id"]
    assert not api.created


def test_the_image_goes_to_the_runtime_of_the_kubelet(shell: Answers) -> None:
    found = node()
    found["status"]["nodeInfo"]["containerRuntimeVersion"] = "cri-o://1.31.0"
    check = run(FakeApi(found))
    assert check.outcome == "not applicable"
    assert "cri-o://1.31.0" in check.evidence
    text = (
        f"{MACHINE}socket /run/k3s/containerd/containerd.sock=1\nsocket /var/run/crio/crio.sock=1\n"
    )
    shell["boot_id"] = Answer(0, text.encode())
    for runtime, socket in (
        ("cri-o", "/var/run/crio/crio.sock"),
        ("containerd", "/run/k3s/containerd/containerd.sock"),
    ):
        found["status"]["nodeInfo"]["containerRuntimeVersion"] = f"{runtime}://1.2.3"
        assert run(FakeApi(found)).outcome == "ok"
        assert f" remove {socket}" in FakeSession.scripts[-1]


@pytest.mark.parametrize(
    ("word", "answer", "words"),
    [
        ("boot_id", Answer(0, b"boot_id=x\nkubelet_endpoint=\n"), "no Node of the cluster is this machine"),
        (" import ", Answer(0, f'{MARK}{{"error": "no space left"}}\n'.encode()), "cannot get the test image: no space left"),
        (" import ", Answer(1, b"/x/pod_image.py is missing\n"), "import: /x/pod_image.py is missing"),
        (" import ", Answer(0, b"Killed\n"), "the node printed Killed"),
    ],
)  # fmt: skip
def test_what_fails_on_the_node_has_its_own_reason(
    shell: Answers, word: str, answer: Answer, words: str
) -> None:
    shell[word] = answer
    check = run(FakeApi())
    assert check.failed
    assert words in check.evidence


def test_the_image_is_removed_when_the_pod_fails(shell: Answers) -> None:
    api = FakeApi()
    api.fails = {"create_pod": "forbidden"}
    check = run(api)
    assert check.evidence == "requests to the API server fail: forbidden"
    assert verbs()[-1] == "remove"


FAILED_HOOK = "error running createContainer hook #0: exit status 4, stderr: quota reached"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (f"{MARK}{json.dumps({'message': f'{FAILED_HOOK}; hook #0 is /usr/bin/a b'})}", "is /usr/bin/a b"),
        ("Killed", "quota reached"),
    ],
)  # fmt: skip
def test_a_pod_that_fails_at_a_hook_is_told_with_the_hooks_program(
    shell: Answers, answer: str, words: str
) -> None:
    shell[" hook "] = Answer(0, f"{answer}\n".encode())
    terminated = {"reason": "StartError", "message": FAILED_HOOK, "exitCode": 128}
    status = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": terminated}}]}
    check = run(FakeApi(statuses=[status]))
    assert check.failed
    assert check.evidence.endswith(words), check.evidence
    assert verbs() == ["boot_id", "import", "hook", "remove"]
    assert "quota reached" in next(text for text in FakeSession.scripts if " hook " in text)


def test_an_api_that_does_not_answer_fails_every_node_of_it(shell: Answers) -> None:
    api = FakeApi()
    api.fails = {"nodes": "API server x does not answer"}
    assert run(api).evidence == "requests to the API server fail: API server x does not answer"
    assert not verbs()


def test_a_node_that_is_away_fails(shell: Answers) -> None:
    assert run(FakeApi(), "away").evidence.endswith("connection refused")


def test_a_kubeconfig_of_the_command_line_counts_for_every_node() -> None:
    named = InventoryNode("a", vars={kubeconfig.PATH: "inventory"})
    assert kubeconfig.kubeconfig_of(named, "option").path == "option"
    assert kubeconfig.kubeconfig_of(named, "").path == "inventory"
    assert not kubeconfig.kubeconfig_of(InventoryNode("b"), "")
    with pytest.raises(InventoryError, match="gpustate_kubeconfig of c is not a path"):
        kubeconfig.kubeconfig_of(InventoryNode("c", vars={kubeconfig.PATH: 3}), "")


def test_a_failed_pod_fails_the_proving_state_and_the_node() -> None:
    result = NodeResult(
        "gpu1",
        states=[
            StateResult("containerd", Outcome.UNCHANGED),
            StateResult("validator", Outcome.CHANGED, validating=True),
        ],
    )
    pods.add(result, judging.not_applicable("all GPUs are in use"))
    assert result.status is NodeStatus.OK
    pods.add(result, judging.failed("nothing", "x"))
    assert result.exit_code == EXIT_VALIDATION
    assert result.reason.startswith(
        "pod: the pod runs, but no device or library of the driver is injected: x; "
    )
    assert [one.outcome for one in result.states] == [Outcome.UNCHANGED, Outcome.FAILED]
    assert [check["outcome"] for check in result.checks] == ["not applicable", "failed"]
