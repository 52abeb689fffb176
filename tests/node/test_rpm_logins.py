"""Private repositories on nodes with dnf and with zypper: a server that asks for a login, and a password of odd characters.

Real: systemd, sshd, dnf, zypper, rpm, signed repodata, HTTP with basic authentication. Simulated: the distribution
(Rocky 9, SLES 15) on a Debian root, and NVIDIA's packages, which are empty.
"""

from __future__ import annotations

import base64
import functools
import http.server
import json
import shlex
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import rpmnodes
from labnodes import LabFactory
from rpmnodes import Repository, become, gpustate, versions
from rpmworld import Rpm
from shares import share

from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]

USER = "site-7"
#: What shells, addresses, dnf's variables and zypper's files each have a meaning for.
PASSWORD = "p$x:@/?&%41='\"\\#{w}[!]~"
VERSION = "1.18.0-1"
TOOLKIT = (
    *("nvidia-container-toolkit", "nvidia-container-toolkit-base"),
    *("libnvidia-container-tools", "libnvidia-container1"),
)
BODY = """
policy = Policy(
    get("toolkit-repository")(
        origin="mirror", url={url!r}, key=KEY, signed="metadata", username={user!r}, password={password!r}
    ),
    get("container-toolkit")(version="1.18.0-1"),
)
"""


@dataclass
class Private:
    """A server that serves a folder to those who log in, and remembers whom it turned away.

    Args:
        url: of the folder.
        refused: requests without the right login.
        served: paths that were served.
    """

    url: str = ""
    refused: list[str] = field(default_factory=list[str])
    served: list[str] = field(default_factory=list[str])


class _Handler(http.server.SimpleHTTPRequestHandler):
    private: Private

    def send_head(self) -> object:  # type: ignore[override]
        """Ask for a login before anything is looked at."""
        wanted = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") == f"Basic {wanted}":
            self.private.served.append(self.path)
            return super().send_head()
        self.private.refused.append(self.path)
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="packages"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    folder = tmp_path_factory.mktemp("rpm")
    made = rpmnodes.repository(folder / "world")
    first, base, tools, library = TOOLKIT
    made.fill(
        [
            rpmnodes.BASE,
            Rpm(first, VERSION, (f"{base} = {VERSION}", f"{tools} >= {VERSION}")),
            Rpm(base, VERSION),
            Rpm(tools, VERSION, (f"{library} >= {VERSION}",)),
            Rpm(library, VERSION),
        ],
        folder / "build",
    )
    return made


@pytest.fixture(scope="module")
def rpm_lab(lab_factory: LabFactory, packages: Repository) -> Lab:
    return lab_factory(LabSpec(nodes=1, images=("debian12-rpm",), gpus=("none",)))


@pytest.fixture
def server(rpm_lab: Lab, packages: Repository) -> Iterator[Private]:
    private = Private()
    handler = type("Handler", (_Handler,), {"private": private})
    made = http.server.ThreadingHTTPServer(
        (str(rpm_lab.network.gateway), 0), functools.partial(handler, directory=packages.folder)
    )
    private.url = f"http://{rpm_lab.network.gateway}:{made.server_port}"
    thread = threading.Thread(target=made.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    yield private
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.mark.parametrize("distribution", share("rpm logins", ["rocky", "sles"], most=2))
def test_a_private_repository_is_read_with_its_login_and_nobody_else_sees_it(
    rpm_lab: Lab, packages: Repository, server: Private, tmp_path: Path, distribution: str
) -> None:
    node = rpm_lab.nodes[0]
    become(node, distribution, packages)
    node.run(["rm", "-rf", "/srv/nvidia"])
    body = BODY.format(url=server.url, user=USER, password=PASSWORD)

    def run(verb: str, text: str = body, status: int = 0) -> set[str]:
        document = gpustate(verb, rpm_lab, node, tmp_path, packages, text, status=status)
        assert PASSWORD not in json.dumps(document)
        return {state["outcome"] for state in document["nodes"][0]["states"]}

    assert run("apply") == {"changed"}
    assert {versions(node).get(name) for name in TOOLKIT} == {VERSION}
    assert any(path.endswith(".rpm") for path in server.served)
    assert run("apply") == {"unchanged"}
    # The package manager itself, without gpustate.
    server.served.clear()
    manager = "dnf" if distribution == "rocky" else "zypper"
    again = ["dnf", "-q", "makecache"] if manager == "dnf" else ["zypper", "-nq", "refresh", "-f"]
    node.run(again)
    assert any(path.endswith("repomd.xml") for path in server.served)
    folders = "/etc /var/lib/gpustate /var/log /var/cache /run /tmp"
    found = f"grep -rlFe {shlex.quote(PASSWORD)} {folders} 2>/dev/null"
    readable = node.run(f"{found} | xargs stat -c '%a %U %n'", check=False).stdout
    assert readable
    assert all(line.startswith("600 root /etc/") for line in readable.splitlines()), readable
    # Another password is refused by the server; the right one comes back with an apply.
    node.run("rm -rf /var/cache/dnf /var/cache/zypp")
    wrong = body.replace(repr(PASSWORD), repr("another"))
    assert "failed" in run("apply", wrong, 1)
    assert server.refused
    assert run("apply") == {"changed", "unchanged"}
    assert run("remove") == {"changed"}
    left = node.run(["ls", "/etc/dnf/vars", "/etc/zypp/credentials.d"], check=False).stdout
    assert "gpustate" not in left


def test_without_a_login_the_server_turns_the_node_away(
    rpm_lab: Lab, packages: Repository, server: Private, tmp_path: Path
) -> None:
    node = rpm_lab.nodes[0]
    become(node, "rocky", packages)
    body = BODY.replace(", username={user!r}, password={password!r}", "").format(url=server.url)
    told = str(gpustate("apply", rpm_lab, node, tmp_path, packages, body, status=7))
    assert "check username and password in the policy" in told
    assert server.refused
    assert server.served == []
