"""A plan names the driver of a node whose repository is not there yet, without changing the node."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpustate import Disruption, NodeFacts, PciGpu, Plan
from gpustate.core.queries import Answer
from gpustate.errors import ProbeError
from gpustate.formats import rpm
from gpustate.formats.dpkg import Candidate
from gpustate.ops.transaction import PIN_PATH, Transaction, TransactionQuery
from gpustate.probes import repository_preview
from gpustate.probes.repository_preview import Previewed, RepositoryQuery, leave_out, unread
from gpustate.states.driver import DriverInstalled, building
from gpustate.states.driver.observed import AptQuery, Live
from gpustate.states.repository import DriverRepository
from gpustate.testing import FakeNode

from .test_driver import World, gpu

DATA = Path(__file__).parents[2] / "data/openpgp"
URL = "http://mirror.example.net/cuda"


def fresh(*gpus: PciGpu, **more: Any) -> World:
    """A node on which only the preview knows of packages."""
    node = World(*gpus, **more)
    offered, node.packages_offered = node.packages_offered, {}

    def apt(_: FakeNode) -> Any:
        node.packages_offered = offered
        try:
            return node.apt()
        finally:
            node.packages_offered = {}

    node.answers["Previewed"] = apt
    return node


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (
            DriverInstalled(),
            "will install driver 595.91.07 with open kernel modules, built on the node with DKMS",
        ),
        (DriverInstalled(branch=580), "will install driver 580.178.04 with open kernel modules"),
    ],
)
def test_a_fresh_node_is_told_its_driver(state: DriverInstalled, told: str) -> None:
    node = fresh(gpu())
    installs = {"nvidia-driver-cuda": Candidate("1", "http://x  Packages")}
    node.answers["TransactionQuery"] = Transaction(installs=installs)
    plan = state.forecast(node, "the repository")
    assert plan.notes[0].startswith(told)
    packages, headers, library, pin = plan.changes
    assert packages.before == {}
    assert packages.after["nvidia-driver-cuda"] == f"{library.after}-1"
    assert packages.why == "from http://x"
    assert (headers.field, plan.disruption) == ("headers", Disruption.NONE)
    assert headers.why == "linux-headers-6.1.0-9-amd64"
    assert plan.installs == ((headers.why, ""),)
    assert pin.path == PIN_PATH
    (query,) = {one for one in node.queries if isinstance(one, Previewed)}
    assert "the repository\n" in query.script()


def test_a_fresh_node_is_told_that_the_driver_of_a_run_file_goes() -> None:
    node = fresh(gpu())
    node.more = Live(installer=True)
    plan = DriverInstalled(leftovers="uninstall").forecast(node, "the repository")
    (change,) = (one for one in plan.changes if one.field == "installer")
    assert (change.before, change.after) == (True, False)
    assert change.why == "the driver installed by NVIDIA's .run installer is removed"


def test_what_its_repository_does_not_offer_is_refused() -> None:
    state = DriverInstalled(branch=400)
    plan = state.forecast(fresh(gpu()), "the repository")
    assert (plan.refusal or "").startswith("http://x has no branch 400; it has branches 570,")
    (note,) = state.forecast(fresh(gpu()), "").notes
    assert note.startswith("will be refused: no repository in use has branch 400")


def test_what_is_installed_already_stays() -> None:
    node = World(gpu())
    names = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libcuda1", "libnvidia-ml1")
    node.installed.update(dict.fromkeys(names, "580.65.06-1"))
    plan = DriverInstalled().forecast(node, "")
    (note,) = plan.notes
    assert note == "stays driver 580.65.06 with open kernel modules, built on the node with DKMS"
    packages, *_ = plan.changes
    added = packages.after.items() - packages.before.items()
    assert added == {("nvidia-persistenced", "580.65.06-1")}
    node.installed["nvidia-persistenced"] = "580.65.06-1"
    plan = DriverInstalled().forecast(node, "")
    assert plan.notes == (note,)
    assert [change.field for change in plan.changes] == ["headers", "pin_text"]


def test_what_debians_contrib_has_is_refused_with_the_components_to_add() -> None:
    """As apt 2.6 says it of a set whose dependency no repository of the node has."""
    node = fresh(gpu())
    lacking = "nvidia-driver-libs : Depends: glx-alternative-nvidia but it is not installable"
    node.answers["TransactionQuery"] = Transaction(
        "The following packages have unmet dependencies:\n "
        f"{lacking}\nE: Unable to correct problems, you have held broken packages.\n"
    )
    why = DriverInstalled(branch=580).forecast(node, "the repository").refusal or ""
    assert why.startswith("apt cannot install driver 580.178.04: ")
    assert f"{lacking}; no repository of the node has it: add contrib and non-free" in why


SITE = "/etc/apt/preferences.d/site"
PINNED = f"""=pins
{SITE}|libnvidia-nvvm704|595.91.07-1|-1
{SITE}|libnvidia-nvvm704|580.178.04-1|-1
=policy
libnvidia-nvvm704:
  Installed: (none)
  Candidate: (none)
  Version table:
     595.91.07-1 -1
        500 http://mirror.example.net/cuda  Packages
     580.178.04-1 PRIORITY
        500 http://mirror.example.net/cuda  Packages
"""
UNMET = "libcuda1 : Depends: libnvidia-nvvm704 (= 580.178.04-1) but it is not installable"
INSTALLS = "=installs libnvidia-nvvm704 580.178.04-1\n"


@pytest.mark.parametrize(
    ("text", "priority", "pins"),
    [
        (f"{UNMET}\n", -1, {"libnvidia-nvvm704 580.178.04-1": SITE}),
        (INSTALLS, -1, {"libnvidia-nvvm704 580.178.04-1": SITE}),
        # Another foreign file, which apt reads before, allows it.
        (f"{UNMET}\n", 500, {}),
        (INSTALLS, 500, {"libnvidia-nvvm704 580.178.04-1": SITE}),
        (f"{UNMET.replace('580.178.04', '580.65.06')}\n", -1, {}),
        # Any version would do, and none is allowed.
        (f"{UNMET.replace(' (= 580.178.04-1)', '')}\n", -1, {"libnvidia-nvvm704": SITE}),
    ],
)
def test_pins_of_dependencies_are_named_with_their_file(
    text: str, priority: int, pins: dict[str, str]
) -> None:
    """As apt 2.6 prints it."""
    query = TransactionQuery("apt", (), ())
    answer = query.parse(Answer(0, (text + PINNED.replace("PRIORITY", str(priority))).encode()))
    assert answer.pins == pins
    node = fresh(gpu())
    node.answers["TransactionQuery"] = answer
    plan = DriverInstalled(branch=580).forecast(node, "the repository")
    unsolved = text.startswith(UNMET[:8])
    refused = f"apt cannot install driver 580.178.04: it depends on {next(iter(pins), '')}, which a pin in "
    assert (plan.refusal == f"{refused}{SITE} forbids; remove that pin") == (
        unsolved and bool(pins)
    )
    noted = f"pins in {SITE} forbid libnvidia-nvvm704 580.178.04-1; pins in files that apt reads before override them"
    assert (noted in answer.overridden_pins()) == (not unsolved and bool(pins))


TRANSACTIONS = {
    "apt": (
        "Inst libcuda1 (580.178.04-1 NVIDIA:CUDA [amd64])\n"
        "Inst libnvidia-ml1 [570.1-1] (580.178.04-1 NVIDIA:CUDA [amd64]) []\nInst dkms (3.0-1 Debian:12 [all])\n",
        {
            "libcuda1": Candidate("580.178.04-1", "http://nvidia.example/cuda  Packages"),
            "libnvidia-ml1": Candidate("580.178.04-1", ""),
            "dkms": Candidate("3.0-1", "http://deb.example/debian bookworm/contrib amd64 Packages"),
        },
    ),
    "dnf": (
        "Installing:\n nvidia-driver-cuda  x86_64  3:580.178.04-1.el9  cuda  1 k\nInstalling dependencies:\n"
        " nvidia-kmod-common  noarch  3:580.178.04-1.el9  cuda  1 k\n libnvidia-ml  i686  3:580.178.04-1.el9  cuda  1 k\n"
        "\nTransaction Summary\nInstall  3 Packages\n",
        {
            name: Candidate("3:580.178.04-1.el9", "cuda")
            for name in ("nvidia-driver-cuda", "nvidia-kmod-common", "libnvidia-ml.i686")
        },
    ),
    "zypper": (
        "<to-install>\n<solvable type='package' name='nvidia-common-G06' edition='580.178.04-1' arch='x86_64'/>\n"
        "</to-install>\n<to-remove>\n<solvable type='package' name='libcuda1' edition='580.178.04-1'/>\n</to-remove>\n"
        "<search-result><solvable-list>\n<solvable status='not-installed' name='nvidia-common-G06' kind='package' "
        "edition='580.178.04-1' arch='x86_64' repository='cuda'/>\n</solvable-list></search-result>\n",
        {"nvidia-common-G06": Candidate("580.178.04-1", "cuda")},
    ),
}
MADISON = """\
  libcuda1 | 580.178.04-1 | http://nvidia.example/cuda  Packages
  libcuda1 | 580.178.04-1 | http://later.example/cuda  Packages
      dkms | 3.0-2 | http://deb.example/debian trixie/contrib amd64 Packages
      dkms | 3.0-1 | http://deb.example/debian bookworm/contrib amd64 Packages
"""


@pytest.mark.parametrize("bundle", [False, True])
@pytest.mark.parametrize("manager", list(TRANSACTIONS))
def test_what_a_transaction_installs_is_read_from_its_simulation(
    tmp_path: Path, manager: str, bundle: bool
) -> None:
    """Real sh; the package manager is a stand-in that says what the real one says."""
    said, expected = TRANSACTIONS[manager]
    (tmp_path / "said").write_text(said.replace("'", '"'))
    program = "apt-get" if manager == "apt" else manager
    (tmp_path / program).write_text(f"#!/bin/sh\ncat {tmp_path}/said\n")
    (tmp_path / program).chmod(0o755)
    (tmp_path / "apt-cache").write_text(f"#!/bin/sh\ncat <<E\n{MADISON}E\n")
    (tmp_path / "apt-cache").chmod(0o755)
    query = TransactionQuery(manager, (("nvidia-driver-cuda", "580.178.04-1"),), ())
    script = query.script().replace(rpm.FAMILY, f"pm={manager}\n")
    done = subprocess.run(
        ["sh", "-c", script],
        env={
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "TMPDIR": str(tmp_path),
            "G": str(tmp_path),
            "REPOS": str(tmp_path) if bundle else "",
        },
        capture_output=True,
        check=True,
    )
    if bundle and manager != "apt":
        expected = {name: replace(row, origin="the bundle") for name, row in expected.items()}
    assert query.parse(Answer(0, done.stdout)) == Transaction(installs=expected)
    refused = b"Reading package lists...\nBuilding dependency tree... Done\nE: something new\n"
    assert query.parse(Answer(0, refused)) == Transaction("E: something new")


SUMMARIES = {
    "apt": (
        "=size Need to get 371 MB/400 MB of archives.\n"
        "=size After this operation, 1,024 MB of additional disk space will be used.\n"
    ),
    "dnf": "=size Total download size: 371 M\n=size Installed size: 1.0 G\n",
    "zypper": '=size <install-summary download-size="389021696" space-usage-diff="1073741824" packages-to-change="9">\n',
}


@pytest.mark.parametrize("manager", list(SUMMARIES))
@pytest.mark.parametrize(
    ("files_kib", "archives", "says"),
    [
        (1048576 + 1024, "379905 /var/cache/apt", ""),
        (
            1048575 - 1024,
            "379905 /var/cache/apt",
            r"^/ has 102[0-3] MiB free, and the packages need 1024 MiB$",
        ),
        (
            9000000,
            "379000 /var/cache/apt",
            r"^/var/cache/apt has 370 MiB free, and the packages need 371 MiB$",
        ),
        (1400000, "1400000 /", r"^/ has 1367 MiB free, and the packages need 1395 MiB$"),
        (1430000, "1430000 /", ""),
    ],
)
def test_packages_without_room_are_refused(
    manager: str, files_kib: int, archives: str, says: str
) -> None:
    """Sizes as apt 2.6, dnf 4 and 5, and zypper 1.14 print them; /usr and the archives are on one filesystem or on two."""
    query = TransactionQuery("apt", (), ())
    rows = f"=installs dkms 3.0-1\n{SUMMARIES[manager]}=room {files_kib} /\n=room {archives}\n"
    shortage = query.parse(Answer(0, rows.encode())).shortage
    assert re.search(says, shortage) if says else shortage == ""
    assert query.parse(Answer(0, SUMMARIES[manager].encode())).shortage == "", "where it is known"


def test_origins_of_packages_are_summed_up() -> None:
    """Real names; of Debian's archive, tools have another version than the driver."""
    nvidia = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"
    debian = "https://deb.debian.org/debian bookworm"
    installs = {
        "libcuda1": Candidate("1", f"{nvidia}  Packages"),
        "nvidia-driver-cuda": Candidate("1", f"{nvidia}  Packages"),
        "nvidia-modprobe": Candidate("2", f"{debian}/contrib amd64 Packages"),
        "dctrl-tools": Candidate("3", f"{debian}/main amd64 Packages"),
        "dkms": Candidate("3", f"{debian}/main amd64 Packages"),
        "libnvidia-ml1": Candidate("1", ""),
    }
    targets = ("libcuda1", "nvidia-driver-cuda", "nvidia-modprobe", "libnvidia-ml1")
    other = f"nvidia-modprobe from {debian}/contrib"
    dependencies = f"with dctrl-tools, dkms 3 from {debian}/main"
    assert building.origin(targets, installs) == f"from {nvidia}; {other}; {dependencies}"
    text = building.origin(("nvidia-driver-cuda",), {n: installs[n] for n in targets})
    assert text == (
        f"from {nvidia}; with libcuda1 1 from {nvidia}; libnvidia-ml1 1; nvidia-modprobe 2 from {debian}/contrib"
    )
    suse = {"libcuda1": Candidate("1", "NVIDIA packages (gpustate-driver-repository)")}
    assert building.origin(suse, suse) == "from NVIDIA packages (gpustate-driver-repository)"
    assert building.origin(targets, {}) == "", "nothing changes"
    assert building.origins({"linux-headers-x": Candidate("6.8-1", "")}) == "linux-headers-x 6.8-1"


@pytest.mark.parametrize(
    ("parameters", "version", "excluded"),
    [
        ({"branch": 580}, "580.178.04", "595.91.07"),
        ({"version": "latest-lts"}, "580.178.04", "595.91.07"),
        ({"version": "580.65.06"}, "580.65.06", "580.178.04"),
        ({}, "595.91.07", ""),
    ],
)
def test_a_lock_gets_the_newest_set_of_the_request_whatever_is_installed(
    parameters: dict[str, Any], version: str, excluded: str
) -> None:
    node = fresh(gpu())
    names = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libcuda1", "libnvidia-ml1")
    node.installed.update(dict.fromkeys(names, "580.65.06-1"))
    solution = DriverInstalled(**parameters).solve(node, "the repository")
    assert (solution.version, solution.module_type) == (version, "open")
    assert set(solution.packages.values()) == {f"{version}-1"}
    assert {"nvidia-driver-cuda", "nvidia-kernel-open-dkms"} <= solution.packages.keys()
    obstacles = {
        one.version: one.obstacles for one in solution.drivers if one.module_type == "open"
    }
    assert obstacles[version] == ()
    assert not excluded or obstacles[excluded][0].startswith("the policy requests ")


def test_a_request_that_nobody_offers_has_no_set() -> None:
    solution = DriverInstalled(branch=400).solve(fresh(gpu()), "the repository")
    assert solution.problem.startswith("http://x has no branch 400; it has branches 570,")
    assert not solution.packages


def test_a_repository_that_cannot_be_read_says_why() -> None:
    said = b"=preview failed the repository cannot be read: W: no key.\nW: Failed to fetch x  no key\nE: gone\nE: gone\nE: Some index files failed\n"
    with pytest.raises(ProbeError, match=r"^the repository cannot be read: no key; gone$"):
        Previewed(AptQuery(()), "").parse(Answer(0, said))


def test_an_address_that_cannot_be_reached_is_the_cause_of_a_missing_release_file() -> None:
    """As apt 2.6 reports it without a route."""
    output = (
        b"=preview failed the repository cannot be read: "
        b"W: Failed to fetch http://10.99.0.1/x/./InRelease  Could not connect to 10.99.0.1:80 (10.99.0.1). - connect (113: No route to host)\n"
        b"E: The repository 'http://10.99.0.1/x ./ Release' does not have a Release file.\n"
    )
    reason, _ = RepositoryQuery("").parse(Answer(0, output))
    assert reason.startswith("the repository cannot be read: Failed to fetch http://10.99.0.1/x/")
    assert "Could not connect to 10.99.0.1:80" in reason
    assert "Release file" not in reason


UNREAD = "/etc/apt/sources.list.d/site.sources:2: http://foreign.example/x cannot be read "


@pytest.mark.parametrize(
    ("output", "code", "notes"),
    [
        (
            "W: OpenPGP signature verification failed: http://foreign.example/x ./ InRelease: Missing key F7821\n"
            "E: The repository 'http://foreign.example/x ./ InRelease' is not signed.\n",
            100,
            [f"{UNREAD}(Missing key F7821); planned without its packages"],
        ),
        (
            "E: Release file for http://foreign.example/x/InRelease is not valid yet (invalid for another 364d). "
            "Updates for this repository will not be applied.\n",
            100,
            [
                f"{UNREAD}(is not valid yet (invalid for another 364d). Updates for this repository will not be applied); "
                "planned without its packages; the node's clock is slow, or the repository was published with a fast "
                "clock: synchronise the clocks"
            ],
        ),
        (
            "E: Release file for http://foreign.example/x/./InRelease is expired (invalid since 9d).\n"
            "W: http://good.example/InRelease: Policy will reject signature within a year\n",
            100,
            [f"{UNREAD}(is expired (invalid since 9d)); planned without its packages"],
        ),
        (
            "W: http://foreign.example/x/InRelease: Policy will reject signature within a year\n",
            0,
            [],
        ),
        (
            "E: The repository 'http://foreign.example/x  Release' does not have a Release file.\n",
            100,
            [f"{UNREAD}(does not have a Release file); planned without its packages"],
        ),
        # The server of a redirect, or one in no entry.
        ("W: Failed to fetch http://other.example/x/InRelease  Could not connect\n", 0, []),
        ("E: Unable to read /etc/apt/sources.list.d/\n", 100, None),
    ],
)
def test_a_foreign_source_that_cannot_be_read_is_noted_and_left_out(
    tmp_path: Path, output: str, code: int, notes: list[str] | None
) -> None:
    """Real sh; apt-get is a stand-in that reports as apt 3.0 does."""
    (tmp_path / "output").write_text(output)
    (tmp_path / "apt-get").write_text(
        "#!/bin/sh\n"
        """case $* in *--print-uris*) echo "'http://foreign.example/x/InRelease' foreign_InRelease 0" ; exit ;; esac\n"""
        f"cat {tmp_path}/output; exit {code}\n"
    )
    (tmp_path / "apt-get").chmod(0o755)
    (tmp_path / "etc-apt/sources.list.d").mkdir(parents=True)
    for name in ("site", "good"):
        address = "foreign.example/x" if name == "site" else "good.example"
        (tmp_path / f"etc-apt/sources.list.d/{name}.sources").write_text(
            f"Types: deb\nURIs: http://{address}\nSuites: ./\n"
        )
    query = Previewed(AptQuery(()), "")
    script = query.script().replace("cp -r /etc/apt", f"cp -r {tmp_path}/etc-apt")
    done = subprocess.run(
        ["sh", "-c", script.replace(rpm.FAMILY, "pm=apt\n")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path), "G": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    answer = Answer(0, done.stdout)
    if notes is not None:
        assert list(unread(answer.text).values()) == notes
        assert "foreign.example" not in str(query.parse(answer))
        return
    with pytest.raises(ProbeError) as caught:
        query.parse(answer)
    assert caught.value.message.startswith("a source of the node cannot be read: Unable to read")
    assert caught.value.fix == (
        "correct or remove its entry (apt-get update on the node shows it), then plan again"
    )


def test_sources_that_did_not_answer_are_named_and_not_waited_for_again(tmp_path: Path) -> None:
    """Real sh; apt-get is a stand-in that reports as apt 3.0 does what it cannot reach."""
    (tmp_path / "apt-get").write_text(
        "#!/bin/sh\n"
        """case $* in *--print-uris*) echo "'http://dead.example/x/InRelease' dead_InRelease 0" ; exit ;; esac\n"""
        f"cat {tmp_path}/*/apt/sources.list {tmp_path}/*/apt/sources.list.d/* >{tmp_path}/asked\n"
        f"grep -q dead.example {tmp_path}/asked || exit 0\n"
        "echo 'W: Failed to fetch http://dead.example/x/dists/noble/InRelease  Could not connect to dead.example:80 "
        "(192.0.2.1), connection timed out'\n"
        "echo 'W: Some index files failed to download. They have been ignored, or old ones used instead.'\n"
    )
    (tmp_path / "apt-get").chmod(0o755)
    parts = tmp_path / "etc-apt/sources.list.d"
    parts.mkdir(parents=True)
    own = "Types: deb\nURIs: http://archive.example/ubuntu\nSuites: noble\n"
    (parts / "ubuntu.sources").write_text(f"{own}\nTypes: deb\nURIs: http://dead.example/x\n")
    (parts.parent / "sources.list").write_text(
        "deb http://dead.example/x noble main\ndeb http://archive.example/y noble main\n"
    )
    query = Previewed(AptQuery(()), "")
    script = query.script().replace("cp -r /etc/apt", f"cp -r {tmp_path}/etc-apt")

    def ask(before: str) -> Answer:
        done = subprocess.run(
            ["sh", "-c", f"{before}\n{script.replace(rpm.FAMILY, 'pm=apt' + chr(10))}"],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path), "G": str(tmp_path)},
            capture_output=True,
            check=True,
        )
        return Answer(0, done.stdout)

    first = ask("")
    notes = unread(first.text)
    assert notes == {
        "http://dead.example/x": "/etc/apt/sources.list:1, /etc/apt/sources.list.d/ubuntu.sources:6: "
        "http://dead.example/x did not answer (Could not connect to dead.example:80 (192.0.2.1), connection timed out); "
        "planned without its packages"
    }
    assert "dead.example" not in str(query.parse(first)), "rows of sources are no packages"
    assert not unread(ask(leave_out(notes)).text)
    left = (tmp_path / "asked").read_text()
    assert "dead.example" not in left
    assert left.count("archive.example") == 2
    row = next(line for line in first.text.splitlines() if line.startswith("=source "))
    refused = Answer(0, f"{row}\nE: Unable to locate package x\n".encode())
    assert TransactionQuery("apt", (), ()).parse(refused)[0] == "E: Unable to locate package x"


def test_a_dnf_repository_that_does_not_answer_is_named_and_left_out(tmp_path: Path) -> None:
    """Real sh; dnf is a stand-in that reports as dnf 4.14 does."""
    (tmp_path / "dnf").write_text(
        "#!/bin/sh\n"
        f"""cat {tmp_path}/*/repos/*.repo >>{tmp_path}/asked; case $* in *" makecache"*) ;; *) exit ;; esac\n"""
        f"""grep -q dead.example {tmp_path}/asked || exit 0; cat <<'EOF'
Errors during downloading metadata for repository 'vendor':
  - Curl error (7): Couldn't connect to server for http://dead.example/x/repodata/repomd.xml [Failed to connect]
Error: Failed to download metadata for repo 'vendor': Cannot download repomd.xml: All mirrors were tried
Ignoring repositories: vendor
EOF
"""
    )
    (tmp_path / "dnf").chmod(0o755)
    (tmp_path / "yum.repos.d").mkdir()
    (tmp_path / "yum.repos.d/site.repo").write_text(
        "[base]\nbaseurl=http://good.example/x\n\n[vendor]\nbaseurl=http://dead.example/x\nenabled=1\n"
    )
    script = repository_preview.script("")
    script = script.replace(":-/etc/yum.repos.d}", f":-{tmp_path}/yum.repos.d}}")

    def ask(before: str) -> str:
        (tmp_path / "asked").unlink(missing_ok=True)
        return subprocess.run(
            [
                "sh",
                "-c",
                f"{before}\n{script.replace(rpm.FAMILY, 'pm=dnf' + chr(10))}\ncat $T/repos/*",
            ],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout

    first = ask("")
    notes = unread(first)
    assert notes == {
        "vendor": "/etc/yum.repos.d/site.repo:4: vendor did not answer (Curl error (7): Couldn't connect to server); "
        "planned without its packages"
    }
    assert "good.example" in first
    assert "dead.example" not in first, "it is not waited for again"
    assert not unread(ask(leave_out(notes)))
    asked = (tmp_path / "asked").read_text()
    assert "good.example" in asked
    assert "dead.example" not in asked


def repository(**parameters: Any) -> str:
    state = DriverRepository(**parameters)
    facts = NodeFacts(
        os_id="debian",
        os_version="12",
        os_codename="bookworm",
        machine="x86_64",
        package_manager="apt",
    )
    return state.preview(state.probe(read_only(facts=facts)))


def read_only(**more: Any) -> FakeNode:
    return FakeNode(shell={"lists": (0, "")}, **more)


APT_GET = r"""#!/bin/sh
[ "$1" = update ] || exit 0
echo "$*" >>@F@/calls; cat "$APT_CONFIG" >@F@/conf
for f in "${APT_CONFIG%/conf}"/new/*; do cat "$f" >@F@/source; done
ls "${APT_CONFIG%/conf}/apt/preferences.d" >@F@/pins; exit @CODE@
"""


@pytest.mark.parametrize("code", [0, 100])
def test_the_preview_reads_the_repository_in_folders_of_its_own(tmp_path: Path, code: int) -> None:
    """Real sh; apt-get and apt-helper are stand-ins."""
    preview = repository(
        origin="mirror", url=URL, key="http://mirror.example.net/k.asc", fingerprint="A" * 40
    )
    tools = {
        "apt-get": APT_GET.replace("@F@", str(tmp_path)).replace("@CODE@", str(code)),
        "apt-helper": '#!/bin/sh\nfor f; do :; done; echo key >"$f"\n',
        "apt-cache": "#!/bin/sh\necho 'libcuda1:'\n",
        "dpkg-query": "#!/bin/sh\n",
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    query = AptQuery((("debian", ("libcuda1",)),))
    script = Previewed(query, preview, PIN_PATH).script()
    script = script.replace("/usr/lib/apt/apt-helper", str(tmp_path / "apt-helper"))
    script = script.replace("cp -r /etc/apt", f"cp -r {tmp_path}/etc-apt")
    (tmp_path / "etc-apt" / "apt.conf.d").mkdir(parents=True)
    (tmp_path / "etc-apt" / "preferences.d").mkdir()
    (tmp_path / "etc-apt" / "preferences.d" / "gpustate-driver").write_text("")
    (tmp_path / "etc-apt" / "apt.conf.d" / "50hook").write_text('APT::Update::Post-Invoke "x";')
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        ["sh", "-c", f"cd {tmp_path}\npm=apt\n{script}"],
        env={
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "TMPDIR": str(tmp_path / "tmp"),
            "G": str(tmp_path / "g"),
            "SYS": "/sys",
            "PROC": "/proc",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if code:
        assert "=preview failed the repository cannot be read" in done.stdout
    else:
        assert "=offers" in done.stdout
    assert f"URIs: {URL}" in (tmp_path / "source").read_text()
    assert "/etc/apt/keyrings" not in (tmp_path / "source").read_text()
    assert (tmp_path / "pins").read_text().split() == ["gpustate-driver-repository"]
    assert "Dir::State::lists" in (tmp_path / "conf").read_text()
    assert list((tmp_path / "tmp").iterdir()) == [], "nothing is left behind"
    assert not (tmp_path / "g").exists(), "and nothing is kept for the next run"


@pytest.mark.parametrize("more", [{}, {"APT_CONFIG": "/var/lib/gpustate-packages/apt.conf"}])
def test_offers_are_asked_for_without_the_drivers_own_pin(
    tmp_path: Path, more: dict[str, str]
) -> None:
    """Real sh; apt-cache is a stand-in that lists the pins it would read. A bundle and a rollback have settings of apt's."""
    (tmp_path / "apt-cache").write_text(
        '#!/bin/sh\ncase $2 in *=*) ls "${2#*=}" ;; *) echo all ;; esac\n'
    )
    (tmp_path / "dpkg-query").write_text("#!/bin/sh\n")
    for name in ("apt-cache", "dpkg-query"):
        (tmp_path / name).chmod(0o755)
    pins, made = tmp_path / "preferences.d", tmp_path / "tmp"
    pins.mkdir()
    made.mkdir()
    script = (
        AptQuery((("debian", ("libcuda1",)),)).script().replace("/etc/apt/preferences.d", str(pins))
    )
    (pins / "other").write_text("")
    for own, said in ((False, "all\n"), (True, "other\n")):
        if own:
            (pins / "gpustate-driver").write_text("")
        done = subprocess.run(
            ["sh", "-c", f"pm=apt\nAPT_KEY={own}\n{script}"],
            env={
                **more,
                "PATH": f"{tmp_path}:/usr/bin:/bin",
                "TMPDIR": str(made),
                "G": str(tmp_path / "g"),
                "SYS": "/sys",
            },
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.endswith(f"=offers\n{said}")
    assert list(made.iterdir()) == []


def test_offers_are_asked_for_each_architecture(tmp_path: Path) -> None:
    """Real sh: a copy for i386 is a package of its own, also under the names of another branch."""
    rows = (
        "dpkg|amd64|1.22|ii ",
        "libnvidia-gl-580|amd64|580.65.06-0ubuntu1|hi ",
        "libnvidia-gl-580|i386|580.65.06-0ubuntu1|ii ",
        "libnvidia-compute|i386|595.91.07-1ubuntu1|ii ",
        "nvidia-firmware-580|all|580.65.06-0ubuntu1|ii ",
    )
    listing = "\n".join(rows)
    for name, text in (
        ("dpkg-query", f"cat <<'E'\n{listing}\nE"),
        ("apt-cache", 'echo "asked $*"'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    script = AptQuery((("debian", ()), ("ubuntu", ()))).script()
    done = subprocess.run(
        ["sh", "-c", f"pm=apt\nAPT_KEY=1\n{script}"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "G": str(tmp_path / "g"), "SYS": "/sys"},
        capture_output=True,
        text=True,
        check=True,
    )
    asked = done.stdout.rpartition("asked policy ")[2].split()
    assert {"libnvidia-gl-580", "libnvidia-gl", "libnvidia-gl-580:i386", "libnvidia-gl:i386"} <= {
        *asked
    }
    assert {"libnvidia-gl-570:i386", "libnvidia-compute-580:i386"} <= {*asked}
    assert not [name for name in asked if "amd64" in name or ":all" in name or name == "dpkg"]
    packages = AptQuery(()).parse(Answer(0, done.stdout.encode())).packages
    assert packages["libnvidia-gl-580"].held
    assert not packages["libnvidia-gl-580:i386"].held


def test_a_repository_that_goes_or_wants_its_login_first_adds_nothing() -> None:
    state = DriverRepository()
    assert state.model_copy(update={"ensure": "absent"}).preview(state.probe(read_only())) == ""
    facts = NodeFacts(os_id="rocky", os_version="9", machine="x86_64", package_manager="dnf")
    assert "[gpustate-driver-repository]" in state.preview(state.probe(read_only(facts=facts)))
    private = DriverRepository(
        origin="mirror",
        url=URL,
        key=f"{URL}/k.asc",
        fingerprint="A" * 40,
        username="a",
        password="b",
    )
    asked = private.preview(private.probe(read_only(facts=facts)))
    assert asked == "preview_failed 'the repository needs a login that is not on the node yet'"


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (
            "key\n=preview failed the repository cannot be read: E: the archive is not signed\n",
            "is not signed;",
        ),
        (
            "=preview failed the repository cannot be read: E: Failed to fetch http://x/InRelease  401  Unauthorized\n"
            "E: The repository 'http://x  InRelease' is not signed.\n",
            "the repository refuses this login: check username",
        ),
        ("=preview failed no room for a copy of the package lists\n", None),
        ("", None),
    ],
)
def test_a_repository_that_no_change_can_read_is_refused(answer: str, refusal: str | None) -> None:
    facts = NodeFacts(
        os_id="debian",
        os_version="12",
        os_codename="bookworm",
        machine="x86_64",
        package_manager="apt",
    )
    said = RepositoryQuery("").parse(Answer(0, answer.encode()))
    fake = read_only(facts=facts, answers={"RepositoryQuery": said})
    state = DriverRepository(origin="mirror", url=URL, key=(DATA / "expired.asc").read_text())
    plan = state.forecast(fake, "preview")
    assert bool(plan.refusal) is bool(refusal)
    if refusal:
        assert refusal in (plan.refusal or "")
        assert "E2A898F43881B9B32502E7474B4FEFB310C3A467 expired on 2024-05-01" in (
            plan.refusal or ""
        )
    private = state.model_copy(update={"username": "a", "password": "b"})
    assert private.forecast(fake, "preview") == Plan(), "its login comes with the change"
    facts = NodeFacts(os_id="rocky", os_version="9", machine="x86_64", package_manager="dnf")
    rpm = read_only(facts=facts, answers={"RepositoryQuery": said})
    assert bool(state.forecast(rpm, "preview").refusal) is bool(refusal)
    assert private.forecast(rpm, "preview") == Plan(), "nor is it read elsewhere"
