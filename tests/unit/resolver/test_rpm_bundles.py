"""What bundles of rpm packages are made for: nodes that were asked, names with files, and their repositories."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bundleworld import RpmSite
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rpmworld import Rpm
from signingkey import SigningKey

from gpustate.bundle import reading, write
from gpustate.core.facts import NodeFacts
from gpustate.core.policy import Policy
from gpustate.errors import RefusedError, UsageError
from gpustate.formats import kernelnames
from gpustate.resolver import bundle_nodes, rpm_bundle_nodes, rpm_bundles
from gpustate.resolver.bundle_roots import required_packages
from gpustate.resolver.rpm_bundles import RpmCase, RpmSource, parse_sources
from gpustate.states.container_toolkit import ContainerToolkitInstalled
from gpustate.states.driver import DriverInstalled
from gpustate.states.preflight import PreflightPassed
from gpustate.states.repository import DriverRepository, ToolkitRepository
from gpustate.testing import FakeNode

KERNEL = "5.14.0-503.11.1.el9_5.x86_64"
DEVEL = "5.14.0-503.11.1.el9_5"
V, FULL = "3:580.65.06", "3:580.65.06-1.el9"
DRIVER = [
    Rpm("nvidia-driver-cuda", FULL, (f"nvidia-kmod-common = {V}",)),
    Rpm("nvidia-kmod-common", FULL, (f"nvidia-kmod = {V}",), arch="noarch"),
    Rpm("kmod-nvidia-open-dkms", FULL, ("dkms",), (f"nvidia-kmod = {V}",)),
    Rpm("kmod-nvidia-latest-dkms", FULL, ("dkms",), (f"nvidia-kmod = {V}",)),
    Rpm("nvidia-persistenced", FULL),
    Rpm("nvidia-modprobe", FULL),
]
TOOLKIT = [
    Rpm(name, "1.18.0-1")
    for name in (
        *("nvidia-container-toolkit", "nvidia-container-toolkit-base"),
        *("libnvidia-container-tools", "libnvidia-container1"),
    )
]
BASE = [
    Rpm("dkms", "3.2.1-1.el9", ("gcc", "(kernel-devel-matched if kernel-core)"), arch="noarch"),
    Rpm("gcc", "11-1"),
    Rpm("kernel-devel", DEVEL),
    Rpm("kernel-devel-matched", DEVEL, (f"kernel-devel = {DEVEL}",)),
    Rpm("nvidia-modprobe", "9:999-1"),
    Rpm("python3-dnf-plugin-versionlock", "4.3.0-1", arch="noarch"),
]


@pytest.fixture
def worlds(tmp_path: Path) -> dict[str, RpmSite]:
    rows = {"driver": DRIVER, "toolkit": [*TOOLKIT, Rpm("dkms", "0-1")], "base": BASE}
    return {name: RpmSite(tmp_path / name, packages) for name, packages in rows.items()}


def policy(worlds: dict[str, RpmSite]) -> Policy:
    def of(name: str) -> dict[str, Any]:
        site = worlds[name]
        where = {"origin": "mirror", "url": site.root.as_uri(), "signed": "metadata"}
        return {**where, "key": site.key.public()}

    return Policy(
        PreflightPassed(),
        DriverRepository(**of("driver")),
        ToolkitRepository(**of("toolkit")),
        DriverInstalled(branch=580),
        ContainerToolkitInstalled(),
    )


def sources(worlds: dict[str, RpmSite], folder: Path, **more: str) -> Path:
    """A .repo file of the base's repository with its key."""
    site = worlds["base"]
    key = folder / "base.asc"
    key.write_text(site.key.public())
    uri = site.root.as_uri().replace("/base/", "/$what/")
    rows = {"baseurl": uri, "gpgcheck": "0", "repo_gpgcheck": "1", "gpgkey": key.as_uri(), **more}
    file = folder / "base.repo"
    text = "".join(f"{k}={v}\n" for k, v in rows.items()).replace("$what", "base")
    file.write_text(f"[base]\n{text}[off]\nenabled=0\nbaseurl=http://192.0.2.1/$nobody\n")
    return file


def made(cases: list[bundle_nodes.AnyCase], tmp_path: Path) -> write.Selection:
    cache = tmp_path / "cache"
    cache.mkdir(exist_ok=True)
    (found,) = bundle_nodes.select(cases, cache, lambda _: None)
    return found


def test_a_name_with_files_gets_driver_toolkit_and_what_they_need(
    worlds: dict[str, RpmSite], tmp_path: Path
) -> None:
    repo = sources(worlds, tmp_path)
    case = bundle_nodes.case_of_name("rocky9/x86_64", policy(worlds), [str(repo)], "8xH100")
    assert isinstance(case, RpmCase)
    case = RpmCase(**{**fields(case), "kernels": (KERNEL,), "packages": ("gcc",)})
    found = made([case], tmp_path)
    assert (found.distribution, found.machine, found.kernels) == ("rocky9", "x86_64", (KERNEL,))
    by_home = {
        home: sorted(str(one.package) for one in rows) for home, rows in found.stanzas.items()
    }
    # dkms comes from whose priority is the best, as dnf would have it; so does nvidia-modprobe.
    assert by_home == {
        "driver-repository": sorted(
            f"{one.name} {FULL}" for one in DRIVER if one.name != "kmod-nvidia-latest-dkms"
        ),
        "toolkit-repository": ["dkms 0-1", *sorted(f"{one.name} 1.18.0-1" for one in TOOLKIT)],
        "base": [
            *("gcc 11-1", f"kernel-devel {DEVEL}", f"kernel-devel-matched {DEVEL}"),
            "python3-dnf-plugin-versionlock 4.3.0-1",
        ],
    }
    assert found.asked["kernels"] == (f"kernel-devel={DEVEL}", f"kernel-devel-matched={DEVEL}")
    assert found.asked["--package"] == ("gcc",)


def fields(case: RpmCase) -> dict[str, Any]:
    return {name: getattr(case, name) for name in RpmCase.__slots__}


def test_what_the_installed_have_stays_out(worlds: dict[str, RpmSite], tmp_path: Path) -> None:
    there = tmp_path / "rocky9.installed"
    there.write_text("=dkms|0:3-1|noarch\n+dkms|3-1\n")
    repo = str(sources(worlds, tmp_path))
    bare = bundle_nodes.case_of_name("rocky9/x86_64", policy(worlds), [repo], "")
    full = bundle_nodes.case_of_name("rocky9/x86_64", policy(worlds), [repo], "", [str(there)])
    assert names(made([bare], tmp_path)) - names(made([full], tmp_path)) == {"dkms"}


def names(found: write.Selection) -> set[str]:
    return {one.package.name for rows in found.stanzas.values() for one in rows if one.package}


def test_headers_that_nobody_offers_are_named_and_those_that_are_there_are_not_needed(
    worlds: dict[str, RpmSite], tmp_path: Path
) -> None:
    other = KERNEL.replace("503", "999")
    case = bundle_nodes.case_of_name(
        "rocky9/x86_64", policy(worlds), [str(sources(worlds, tmp_path))], ""
    )
    assert isinstance(case, RpmCase)
    case = RpmCase(**{**fields(case), "kernels": (other,)})
    cache = tmp_path / "cache"
    cache.mkdir()
    package = f"kernel-devel-{kernelnames.parts('dnf', other)['e']}"
    with pytest.raises(RefusedError, match=f"no repository offers {package}, the headers of"):
        bundle_nodes.select([case], cache, lambda _: None)
    case = RpmCase(**{**fields(case), "ready": frozenset({other})})
    assert bundle_nodes.select([case], cache, lambda _: None)


@pytest.mark.parametrize(
    ("name", "os_id", "manager"),
    [
        ("rhel8/x86_64", "rhel", "dnf"),
        ("alma10/aarch64", "almalinux", "dnf"),
        ("amzn2023/x86_64", "amzn", "dnf"),
        ("sles15/x86_64", "sles", "zypper"),
        ("opensuse-leap15/x86_64", "opensuse-leap", "zypper"),
    ],
)
def test_distributions_are_known_by_name(
    worlds: dict[str, RpmSite], tmp_path: Path, name: str, os_id: str, manager: str
) -> None:
    repo = sources(worlds, tmp_path)
    facts = bundle_nodes.case_of_name(name, policy(worlds), [str(repo)], "").facts
    assert (facts.os_id, facts.package_manager) == (os_id, manager)


def test_sles_gets_its_own_names_and_headers() -> None:
    facts = NodeFacts(os_id="sles", os_version="15.7", machine="x86_64", package_manager="zypper")
    names = ("nvidia-open-driver-G06", "nvidia-compute-G06", "nvidia-compute-utils-G06")
    there: dict[str, tuple[str, ...]] = dict.fromkeys(names, ("580.65.06-1",))
    there["kernel-default-devel"] = ("6.4.0-150600.23.65.1",)
    kernels = ("6.4.0-150600.23.65-default", "6.4.0-1-rt")
    wants = required_packages(
        [DriverInstalled(branch=580)], facts, lambda name: there.get(name, ()), kernels
    )
    assert dict(wants.by_state["driver"]) == dict.fromkeys(names, "580.65.06-1")
    assert wants.by_state["kernels"] == (("kernel-default-devel", "6.4.0-150600.23.65.1"),)
    assert wants.bare == {"6.4.0-1-rt": "kernel-rt-devel-6.4.0-1"}


def test_built_modules_go_in_where_the_policy_wants_them(worlds: dict[str, RpmSite]) -> None:
    facts = NodeFacts(os_id="rhel", os_version="9.6", machine="x86_64", package_manager="dnf")
    bare = kernelnames.parts("dnf", KERNEL)["r"]
    package_of = f"kmod-nvidia-580.65.06-{bare}"
    there: dict[str, tuple[str, ...]] = {
        one.name: (one.version,) for one in DRIVER if "kmod-nvidia" not in one.name
    }
    there[package_of] = ("3:580.65.06-3.el9_5",)
    state = DriverInstalled(branch=580, precompiled=True, module_type="proprietary")
    wants = required_packages([state], facts, lambda name: there.get(name, ()), [KERNEL])
    assert (package_of, "3:580.65.06-3.el9_5") in wants.by_state["driver"], wants
    wants = required_packages(
        [state], facts, lambda name: there.get(name, ()), [KERNEL, "6.0-1.el9.x86_64"]
    )
    assert "as a complete set" in wants.problem


def test_nodes_of_a_kind_are_one_case_and_a_kernel_is_ready_where_all_that_have_it_are() -> None:
    facts = NodeFacts(os_id="rocky", os_version="9", machine="x86_64", package_manager="dnf")

    def one(kernels: str, ready: str) -> RpmCase:
        return RpmCase(facts, (), (), {}, tuple(kernels), ready=frozenset(ready))

    (case,) = rpm_bundles.merge_cases([one("abc", "ab"), one("bd", "d"), one("a", "a")])
    assert (case.kernels, case.ready) == (tuple("abcd"), frozenset("ad"))


def test_a_node_tells_repositories_keys_variables_streams_and_what_is_installed() -> None:
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(32))).public().encode()
    facts = NodeFacts(os_id="rocky", os_version="9.6", machine="x86_64", package_manager="dnf")
    said = {
        "rpm -qa --qf '=": "=bash|0:5-1|x86_64\n+bash|5-1\n-/bin/none||\n/usr/bin/bash\n",
        "gpg-pubkey": f"/etc/pki/rpm-gpg/x.asc {b64encode(key).decode()}\n {b64encode(key).decode()}",
        "/etc/yum/vars": "site=a\nreleasever=9\nreleasever=9.6\n",
        "modules.d": "[perl]\nname=perl\nstream=5.32\nstate=enabled\n",
        "/lib/modules": f"{KERNEL}\n",
    }
    node = FakeNode(facts=facts, shell={word: (0, text) for word, text in said.items()})
    node.files["/etc/yum.repos.d/base.repo"] = (
        "[base]\nbaseurl=https://$site.example/$releasever/$basearch\ngpgkey=file:///etc/pki/rpm-gpg/x.asc\n"
    )
    node.files["/etc/yum.repos.d/gpustate-driver-repository.repo"] = (
        "[gpustate-driver-repository]\nbaseurl=file:///var/lib/gpustate-bundle/x/driver-repository\n"
    )
    case = rpm_bundle_nodes.case(node, (), facts, (KERNEL,))
    (source,) = case.sources
    assert source.get("baseurl") == "https://a.example/9/x86_64"
    assert rpm_bundles._place(source, case).keys == (key,)
    assert case.keys[""] == key
    assert (case.streams, case.ready) == ({"perl": "5.32"}, frozenset({KERNEL}))
    (installed,) = case.nodes
    assert [one.name for one in installed.packages] == ["bash"]
    again = rpm_bundle_nodes.case(node, (), facts, (KERNEL,))
    assert again.nodes[0] is installed, "nodes of one image are kept once"


# --- repositories of nodes and files -------------------------------------------------------


def test_repo_files_are_read_with_their_variables() -> None:
    text = (
        "[baseos]\nname=x\nmirrorlist=https://m.example/?a=$basearch&r=${releasever}\n"
        "gpgkey=file:///a\n  file:///b\n#enabled=0\n[off]\nenabled = no\n[main]\nproxy=x\n"
    )
    (one,) = parse_sources({"/etc/x.repo": text}, {"basearch": "x86_64", "releasever": "9"})
    assert one.name == "baseos"
    assert one.get("mirrorlist") == "https://m.example/?a=x86_64&r=9"
    assert one.get("gpgkey").split() == ["file:///a", "file:///b"]
    with pytest.raises(UsageError, match=r"/etc/x\.repo: baseos: undefined variable \$releasever"):
        parse_sources({"/etc/x.repo": text}, {"basearch": "x86_64"})


def place(manager: str, **options: str) -> Any:
    facts = NodeFacts(os_id="x", os_version="9", machine="x86_64", package_manager=manager)
    given = {
        "baseurl": "https://a.example/os/ https://b.example/os",
        "gpgkey": "file:///k",
        **options,
    }
    source = RpmSource("base", "/etc/base.repo", tuple(given.items()))
    return rpm_bundles._place(source, RpmCase(facts, (), (), {"/k": b"key", "": b"rpm's"}))


@pytest.mark.parametrize(
    ("manager", "options", "packages", "metadata"),
    [
        ("dnf", {}, True, False),
        ("dnf", {"gpgcheck": "1", "repo_gpgcheck": "1"}, True, True),
        ("dnf", {"gpgcheck": "0"}, False, False),
        ("zypper", {}, True, True),
        ("zypper", {"repo_gpgcheck": "0"}, True, False),
        ("zypper", {"gpgcheck": "0"}, False, False),
    ],
)
def test_what_is_checked_is_what_dnf_or_zypper_would_check(
    manager: str, options: dict[str, str], packages: bool, metadata: bool
) -> None:
    found = place(manager, **options)
    assert (found.packages_signed, found.metadata_signed) == (packages, metadata)
    assert found.uri == "https://a.example/os"
    assert found.keys == (b"key",)


def test_without_a_gpgkey_the_keys_of_rpm_itself_count() -> None:
    assert place("zypper", gpgkey="").keys == (b"rpm's",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sslclientcert": "/etc/pki/x.pem"}, "base: requires sslclientcert, .* dnf reposync"),
        ({"gpgkey": "file:///nowhere"}, "base: key file /nowhere is missing"),
    ],
)
def test_a_repository_that_cannot_be_read_from_here_is_named(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        place("dnf", **options)


@pytest.mark.parametrize("text", ["", "bash\n", "=bash\n", "=bash|x y|z\n"])
def test_a_list_of_something_else_is_one_line(
    worlds: dict[str, RpmSite], tmp_path: Path, text: str
) -> None:
    there = tmp_path / "list"
    there.write_text(text)
    repo = sources(worlds, tmp_path)
    with pytest.raises(UsageError, match=r"list: ") as caught:
        bundle_nodes.case_of_name("rocky9/x86_64", policy(worlds), [str(repo)], "", [str(there)])
    assert "\n" not in str(caught.value)


def test_the_bundle_is_complete_for_a_policy_and_says_what_it_lacks(
    worlds: dict[str, RpmSite], tmp_path: Path
) -> None:
    """The whole way: made, written, read, and held against a node that has another kernel."""
    from gpustate.core.facts import NodeView
    from gpustate.plan.make import Observations
    from gpustate.states.bundle import BundleInPlace

    case = bundle_nodes.case_of_name(
        "rocky9/x86_64", policy(worlds), [str(sources(worlds, tmp_path))], ""
    )
    chosen = made([case], tmp_path)
    write.write(write.prepare([chosen], tmp_path / "cache"), tmp_path / "b.tar")
    bundle = reading.load(str(tmp_path / "b.tar"))
    assert reading.check(bundle) == []
    facts = NodeFacts(os_id="rocky", os_version="9.6", machine="x86_64", package_manager="dnf")
    states = [
        BundleInPlace(file=bundle.path),
        DriverInstalled(branch=580),
        ContainerToolkitInstalled(),
    ]
    view = NodeView("gpu1", (), {}, facts)
    assert bundle_nodes.lacking(states, Observations(view)) is None

    driver = SimpleNamespace(headers={KERNEL: False}, switches=False)
    reason = bundle_nodes.lacking(states, Observations(view, observed={"driver": driver}))
    assert str(reason) == (
        f"kernel-devel-{DEVEL} is not in the bundle {bundle.path}; build one that has it: "
        f"gpustate bundle POLICY -i INVENTORY --kernel {KERNEL} --out FILE"
    )
    onto = bundle_nodes.onto(policy(worlds), bundle.path)
    (repository,) = (s for s in onto.states if isinstance(s, DriverRepository))
    assert (repository.signed, repository.key) == ("nothing", None)


def test_the_document_has_the_words_that_rpm_is_asked_in() -> None:
    page = Path(__file__).parents[3] / "docs/bundle.md"
    assert f"rpm -qa --qf '{rpm_bundle_nodes.QUERY}'" in page.read_text("utf-8")
