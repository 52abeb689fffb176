"""docker, podman, CRI-O, k3s, RKE2, MicroK8s and k0s on real nodes: real systemd, real docker and podman.

CRI-O is real, too; k3s, RKE2, MicroK8s and k0s are stand-ins with their layout, units and way of reading files
(tests/support/standins.py names the source of each). GPUs are simulated. On nodes that answer as Ubuntu docker and podman
are Debian's packages of the same names; docker as a snap is not there. What becomes of every kind of configuration is in
tests/proof/test_runtime_configurations.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import standins
from commands import gpustate
from labnodes import LabFactory, also_on_ubuntu

from gpustate_lab import programs
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "docker": ("real node", "debian13", "ubuntu"),
    "podman": ("real node", "debian13", "ubuntu"),
    "crio": ("real node", "debian13", "ubuntu"),
    "k3s": ("simulated node", "debian13", "ubuntu"),
    "microk8s": ("simulated node", "debian13", "ubuntu"),
    "k0s": ("simulated node", "debian13", "ubuntu"),
    "dev-char": ("simulated node", "debian13", "ubuntu"),
}
pytestmark = also_on_ubuntu("debian13", "-runtimes")

BINARY = "/usr/bin/nvidia-container-runtime"
HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
HOOK_TEXT = {"version": "1.0.0", "hook": {"path": "/usr/bin/nvidia-container-runtime-hook"}}
POLICY = """
from gpustate import Policy, registry

policy = Policy(*(registry.get(name)(**{parameters}) for name in {names!r}))
"""


@pytest.fixture(scope="module")
def runtimes(lab_factory: LabFactory, image: str) -> Lab:
    return lab_factory(LabSpec(nodes=1, images=(image,), gpus=("2xH100",)))


@pytest.fixture
def node(runtimes: Lab) -> Node:
    """A node with docker and podman, as it was at first, and NVIDIA's runtime beside them."""
    found = runtimes.nodes[0]
    found.reset()
    runtime = programs.provide("container-toolkit-1.20.1", print)["nvidia-container-runtime"]
    shutil.copy(runtime, found.root / BINARY.removeprefix("/"))
    return found


class Runner:
    """Runs verbs on the node, and looks at what became of each state."""

    def __init__(self, lab: Lab, folder: Path, *names: str, **parameters: Any) -> None:
        self.lab = lab
        self.policy = folder / "policy.py"
        self.policy.write_text(POLICY.format(names=names, parameters=parameters))

    def run(self, verb: str, code: int = 0) -> dict[str, dict[str, Any]]:
        words = ["--yes"] if verb in ("apply", "remove") else []
        ran = gpustate(verb, self.policy, "-i", self.lab.inventory, *words, "-o", "json", code=code)
        states = ran.document["nodes"][0]["states"]
        return {state["state"]: state for state in states}

    def outcomes(self, verb: str, code: int = 0) -> dict[str, str]:
        return {name: state["outcome"] for name, state in self.run(verb, code).items()}


def disk(node: Node, *folders: str) -> str:
    """Names, bytes, owners and times."""
    there = " ".join(folders)
    return node.run(
        f"find {there} -type f ! -name key.json -printf '%p %m %U:%G %T@ ' -exec sha256sum {{}} \\; | sort"
    ).stdout


def process(node: Node, unit: str) -> str:
    return node.run(f"systemctl show -p MainPID {unit}").stdout


@pytest.mark.long
def test_a_docker_that_does_not_run_with_the_file_is_rolled_back(
    runtimes: Lab, node: Node, tmp_path: Path
) -> None:
    standins.write(node, "/etc/docker/daemon.json", '{\n\t"debug": false\n}\n')
    before, running = disk(node, "/etc/docker"), process(node, "docker")
    node.run("mv /usr/bin/docker /usr/bin/docker.real")
    # A client that does not see the runtime: as if the daemon had not taken it up.
    wrapper = '#!/bin/sh\nexec /usr/bin/docker.real "$@" | grep -v nvidia=\n'
    standins.write(node, "/usr/bin/docker", wrapper, 0o755)
    runner = Runner(runtimes, tmp_path, "docker")
    state = runner.run("apply", code=7)["docker"]
    assert state["outcome"] == "rolled back"
    assert disk(node, "/etc/docker") == before
    assert process(node, "docker") == running
    node.run("mv /usr/bin/docker.real /usr/bin/docker")
    assert runner.outcomes("apply") == {"docker": "changed"}
    assert node.run("docker info --format '{{(index .Runtimes \"nvidia\").Path}}'").stdout == (
        BINARY + "\n"
    )
    assert process(node, "docker") == running
    assert runner.outcomes("remove") == {"docker": "changed"}
    assert disk(node, "/etc/docker") == before
    assert "nvidia" not in node.run("docker info --format '{{json .Runtimes}}'").stdout


def test_a_file_that_docker_refuses_is_seen_before_it_is_told(
    runtimes: Lab, node: Node, tmp_path: Path
) -> None:
    standins.write(node, "/etc/docker/daemon.json", '{"no-such-option": true}\n')
    before, running = disk(node, "/etc/docker"), process(node, "docker")
    state = Runner(runtimes, tmp_path, "docker").run("apply", code=7)["docker"]
    assert "no-such-option" in state["reason"]
    assert (disk(node, "/etc/docker"), process(node, "docker")) == (before, running)


def test_a_docker_that_is_stopped_gives_back_a_file_that_was_not_there(
    runtimes: Lab, node: Node, tmp_path: Path
) -> None:
    node.run("rm -f /etc/docker/daemon.json")
    runner = Runner(runtimes, tmp_path, "docker")
    assert runner.outcomes("apply") == {"docker": "changed"}
    node.run("systemctl stop docker.socket docker")
    assert runner.outcomes("remove") == {"docker": "changed"}
    assert not (node.root / "etc/docker/daemon.json").exists()
    node.run("systemctl start docker")
    assert runner.outcomes("remove") == {"docker": "unchanged"}


@pytest.mark.parametrize(
    ("name", "path", "text"),
    [
        ("docker", "/etc/docker/daemon.json", "{}\n"),
        ("containerd", "/etc/containerd/config.toml", "version = 2\n"),
    ],
)
def test_a_file_that_is_a_link_is_refused_in_the_plan(
    runtimes: Lab, node: Node, tmp_path: Path, name: str, path: str, text: str
) -> None:
    standins.write(node, "/srv/theirs", text)
    node.run(f"mkdir -p {path.rpartition('/')[0]}; ln -sf /srv/theirs {path}")
    state = Runner(runtimes, tmp_path, name).run("plan", code=5)[name]
    assert state["outcome"] == "refused"
    assert f"{path} is a symbolic link to /srv/theirs" in state["reason"]
    assert (node.root / "srv/theirs").read_text() == text


@pytest.mark.long
def test_a_crio_that_does_not_come_up_is_rolled_back(
    runtimes: Lab, node: Node, tmp_path: Path
) -> None:
    standins.install_crio(node)
    before = disk(node, "/etc/crio")
    # A crio that starts with any configuration but ours.
    node.run("mv /usr/bin/crio /usr/bin/crio.real")
    wrapper = (
        "#!/bin/sh\n[ $# != 0 ] || ! [ -e /etc/crio/crio.conf.d/99-zz-gpustate.toml ] || exit 3\n"
    )
    standins.write(node, "/usr/bin/crio", f'{wrapper}exec /usr/bin/crio.real "$@"\n', 0o755)
    runner = Runner(runtimes, tmp_path, "crio")
    state = runner.run("apply", code=7)["crio"]
    assert state["outcome"] == "rolled back"
    assert disk(node, "/etc/crio") == before
    node.run(
        "mv /usr/bin/crio.real /usr/bin/crio; systemctl reset-failed crio; systemctl restart crio"
    )
    assert runner.outcomes("apply") == {"crio": "changed"}
    assert runner.outcomes("remove") == {"crio": "changed"}
    assert disk(node, "/etc/crio") == before


@pytest.mark.long
def test_crio_without_a_runtime_to_wrap_is_refused_and_nothing_is_written(
    runtimes: Lab, node: Node, tmp_path: Path
) -> None:
    standins.install_crio(node)
    before, running = disk(node, "/etc/crio"), process(node, "crio")
    text = '[nvidia-container-runtime]\nruntimes = [\n  "no-such-runc", # none\n]\n'
    standins.write(node, "/etc/nvidia-container-runtime/config.toml", text)
    state = Runner(runtimes, tmp_path, "crio").run("apply", code=1)["crio"]
    assert "nvidia-container-runtime.runtimes" in state["reason"]
    assert (disk(node, "/etc/crio"), process(node, "crio")) == (before, running)


def test_what_is_no_file_is_refused_in_the_plan_and_nothing_is_touched(
    runtimes: Lab, node: Node, tmp_path: Path
) -> None:
    standins.install_crio(node)
    node.run(
        "rm -rf /etc/containerd/config.toml /etc/docker/daemon.json; mkdir -p /etc/docker /etc/containerd && "
        "mkfifo /etc/containerd/config.toml && mkdir /etc/docker/daemon.json && "
        "ln -s /srv/gone.toml /etc/crio/crio.conf.d/99-zz-gpustate.toml"
    )
    units = ("containerd", "docker", "crio")
    listed = (
        "ls -lA --time-style=full-iso /etc/containerd /etc/docker /etc/crio /etc/crio/crio.conf.d"
    )
    before = node.run(listed).stdout, [process(node, unit) for unit in units]
    runner = Runner(runtimes, tmp_path, *units)
    for verb in ("plan", "apply"):
        reasons = {name: state["reason"] for name, state in runner.run(verb, code=5).items()}
        assert reasons == {
            "containerd": "/etc/containerd/config.toml is a named pipe, and a file belongs there; "
            "move it away: mv /etc/containerd/config.toml /etc/containerd/config.toml.moved",
            "docker": "/etc/docker/daemon.json is a folder, and a file belongs there; "
            "move it away: mv /etc/docker/daemon.json /etc/docker/daemon.json.moved",
            "crio": "/etc/crio/crio.conf.d/99-zz-gpustate.toml is a symbolic link to /srv/gone.toml, which is "
            "not there, and a file belongs there; move it away: "
            "mv /etc/crio/crio.conf.d/99-zz-gpustate.toml /etc/crio/99-zz-gpustate.toml.moved",
        }
        assert (node.run(listed).stdout, [process(node, unit) for unit in units]) == before
    for told in reasons.values():
        node.run(told.partition("move it away: ")[2])
    assert set(runner.outcomes("apply").values()) == {"changed"}


def test_k3s_and_rke2_are_restarted_once_and_nothing_of_theirs_is_written(
    runtimes: Lab, node: Node, tmp_path: Path
) -> None:
    for unit in ("k3s", "rke2-agent"):
        (node.root / BINARY[1:]).unlink(missing_ok=True)
        standins.install_k3s(node, unit)
        name = unit.partition("-")[0]
        generated = f"/var/lib/rancher/{name}/agent/etc/containerd/config.toml"
        assert "nvidia" not in node.run(["cat", generated]).stdout
        node.run("sleep 1.1")
        standins.write(node, BINARY, "#!/bin/sh\n", 0o755)
        old = process(node, unit)
        runner = Runner(runtimes, tmp_path, "k3s")
        assert runner.outcomes("apply") == {"k3s": "changed"}
        restarted = process(node, unit)
        assert restarted != old
        assert BINARY in node.run(["cat", generated]).stdout
        assert runner.outcomes("apply") == {"k3s": "unchanged"}
        assert process(node, unit) == restarted
        assert node.run("ls -A /var/lib/gpustate/originals 2>/dev/null || :").stdout == ""
        node.run(f"systemctl stop {unit}; rm /etc/systemd/system/{unit}.service")
        node.run("systemctl daemon-reload")


def damage(node: Node, before: str, there: str) -> None:
    """What was there before is put back, and what is new goes away, behind gpustate's back."""
    old = {line.split()[0] for line in before.splitlines()}
    for line in there.splitlines():
        path = line.split()[0]
        if line in before.splitlines():
            continue
        if path in old:
            node.run(["cp", "-p", f"/root/before{path}", path])
        else:
            node.run(["rm", path])


def test_several_runtimes_on_one_node_each_get_theirs_and_give_it_back(
    runtimes: Lab, node: Node, tmp_path: Path
) -> None:
    for install in (standins.install_crio, standins.install_microk8s, standins.install_k0s):
        install(node)
    standins.write(node, HOOK, json.dumps(HOOK_TEXT))
    node.run("mknod -m 666 /dev/nvidia0 c 195 0; mknod -m 666 /dev/nvidiactl c 195 255")
    node.run("sleep 1")
    folders = ("/etc", "/var/snap", HOOK.rpartition("/")[0])
    before = disk(node, *folders)
    node.run(f"mkdir /root/before; cp -a --parents {' '.join(folders)} /root/before")
    names = ("containerd", "crio", "docker", "k0s", "microk8s", "podman")
    runner = Runner(runtimes, tmp_path, *names)
    assert runner.outcomes("apply") == dict.fromkeys(names, "changed")
    assert "runtimes.nvidia" in node.run("crio config").stdout
    assert "runtimes.nvidia" in node.run("containerd config dump").stdout
    assert BINARY in node.run("cat /run/k0s/containerd-cri.toml").stdout
    assert BINARY in node.run("cat /var/snap/microk8s/current/args/containerd.toml").stdout
    assert not (node.root / HOOK[1:]).exists()
    there = disk(node, *folders)
    assert runner.outcomes("apply") == dict.fromkeys(names, "unchanged")
    assert disk(node, *folders) == there
    damage(node, before, there)
    standins.write(node, HOOK, json.dumps(HOOK_TEXT))
    assert runner.outcomes("drift", 2) == dict.fromkeys(names, "would change")
    assert runner.outcomes("apply") == dict.fromkeys(names, "changed")
    assert runner.outcomes("remove") == dict.fromkeys(names, "changed")
    node.run("systemctl restart snap.microk8s.daemon-containerd; sleep 0.5")
    rendered = "/var/snap/microk8s/current/args/containerd.toml"
    left, was = (
        [line for line in text.splitlines() if not line.startswith(rendered)]
        for text in (disk(node, *folders), before)
    )
    assert left == was


def test_links_for_systemd_and_a_container_that_would_lose_its_gpus(
    runtimes: Lab, node: Node, tmp_path: Path
) -> None:
    node.run("mknod -m 666 /dev/nvidia0 c 195 0; mknod -m 666 /dev/nvidiactl c 195 255")
    node.run(
        "systemd-run --scope -q --unit docker-abc -p DevicePolicy=strict -p DeviceAllow=/dev/null "
        "sleep 300 >/dev/null 2>&1 & sleep 0.5"
    )
    old = " 1.1.5" in node.run("runc --version").stdout
    assert Runner(runtimes, tmp_path, "dev-char").outcomes("plan") == {
        "dev-char": "would change" if old else "unchanged"
    }
    runner = Runner(runtimes, tmp_path, "dev-char", links="always")
    state = runner.run("apply")["dev-char"]
    assert state["outcome"] == "changed"
    assert any("docker-abc.scope would lose its GPUs" in note for note in state["notes"])
    assert node.run("readlink -f /dev/char/195:255").stdout == "/dev/nvidiactl\n"
    rule = "/etc/udev/rules.d/71-nvidia-dev-char.rules"
    if "verify" in node.run("udevadm --help").stdout:  # from systemd 254 on
        node.run(f"udevadm verify {rule}")
    assert runner.outcomes("apply") == {"dev-char": "unchanged"}
    node.run(f"rm /dev/char/195:255 {rule}")
    assert runner.outcomes("drift", 2) == {"dev-char": "would change"}
    assert runner.outcomes("apply") == {"dev-char": "changed"}
    assert node.run("readlink -f /dev/char/195:255").stdout == "/dev/nvidiactl\n"
    library = next((node.root / "var/lib/gpustate/runs").glob("*/library"))
    call = f"G=/var/lib/gpustate R=/tmp/run LOCK= PROC=/proc SYS=/sys; mkdir -p $R; . {library}; systemd_reload"
    call = call.replace(str(node.root), "")
    refused = node.run(f"({call}) 2>&1", check=False)
    assert refused.returncode == 1
    assert "would take the GPUs from running containers: docker-abc.scope" in refused.stdout
    node.run("systemctl stop docker-abc.scope")
    assert node.run(f"({call}) 2>&1", check=False).returncode == 0
    assert runner.outcomes("remove") == {"dev-char": "changed"}
    assert not (node.root / rule[1:]).exists()
