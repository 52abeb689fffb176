"""One repository, one key, one set of pins; other sources are seen and never edited."""

from __future__ import annotations

import base64
import shlex
import subprocess
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gpustate import NodeFacts, PolicyError, ops
from gpustate.core.file_queries import FileStat, FileStats
from gpustate.core.policy import build, parameters
from gpustate.formats import aptsources, dpkg
from gpustate.formats.masking import mask
from gpustate.ops.upload import APT_CONF, BUNDLE_FOLDER, RPM_REPOS
from gpustate.states.repository import DriverRepository, ToolkitRepository, logins
from gpustate.states.repository.base import KEY_FOLDERS
from gpustate.states.repository.where import cuda_repository
from gpustate.testing import FakeNode, check_contract, converge

DATA = Path(__file__).parents[2] / "data/openpgp"
ONE = "A3FB3B055795FE15146BA362F42952F29AD30799"
KEY = (DATA / "one.asc").read_text()
URL = "http://mirror.example.com/nvidia/debian12"
ARCHIVE = "deb http://archive.example.com/debian bookworm main\n"
LIST = "/etc/apt/sources.list"
ARCHIVE_LISTS = "/var/lib/apt/lists/archive.example.com_debian_dists_bookworm_main_Packages\n"
FACTS: dict[str, Any] = {
    "os_id": "debian",
    "os_version": "12",
    "os_codename": "bookworm",
    "machine": "x86_64",
    "package_manager": "apt",
}


def node(files: dict[str, str] | None = None, **facts: Any) -> FakeNode:
    """A node whose lists are there for whatever its sources name, once they were read."""

    def lists(fake: FakeNode) -> tuple[int, str]:
        ours = [path for path in fake.files if path.endswith(".sources")]
        known = aptsources.parse_sources({path: fake.files[path] for path in ours})
        names = [f"/var/lib/apt/lists/{aptsources.list_name(s.uri)}_Packages" for s in known]
        return 0, ARCHIVE_LISTS + "\n".join(names) + "\n"

    fake = FakeNode(
        files={LIST: ARCHIVE, **(files or {})},
        facts=NodeFacts(**{**FACTS, **facts}),
        shell={"/var/lib/apt/lists/": lists},
        runs={
            "fetch the repository key": lambda fake: fake.files.update(
                {DriverRepository(**MIRROR).key_path: KEY}
            ),
            "remove the package lists": lambda fake: (
                fake.files.pop(DriverRepository(**MIRROR).stamp_path, None) and None
            ),
            "refresh the package lists": lambda fake: None,
        },
    )
    return fake


MIRROR: dict[str, Any] = {"origin": "mirror", "url": URL, "key": KEY}


def test_a_mirror_gets_its_source_its_key_and_its_pins() -> None:
    state, fake = DriverRepository(**MIRROR), node()
    first, last = converge(state, fake)
    assert first.fields == {"sources_text", "key_text", "fingerprints", "pin_text", "lists_read"}
    assert not last
    assert fake.files[state.key_path] == KEY
    (source,) = aptsources.parse_sources({state.sources_path: fake.files[state.sources_path]})
    assert (source.uri, source.suite, source.signed_by) == (URL, "/", state.key_path)
    (update,) = (step for step in fake.done if isinstance(step, ops.AptUpdate))
    assert update.source_list == state.sources_path
    # Removed again when the lists cannot be read.
    assert set(update.roll_back) == {state.sources_path, state.key_path, state.pin_path}
    assert fake.files[LIST] == ARCHIVE
    gone, _ = converge(DriverRepository(**MIRROR, ensure="absent"), fake)
    assert {change.field: change.why for change in gone.changes if change.why} == {}


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        (DriverRepository, "nvidia-kernel-open-dkms"),
        (DriverRepository, "nvidia-driver-580-server"),
        (ToolkitRepository, "nvidia-container-toolkit"),
    ],
)
def test_a_node_that_other_repositories_serve_is_left_alone(
    kind: type[DriverRepository], package: str
) -> None:
    state, foreign = kind(**MIRROR, unless_offered=True), "http://developer.download.nvidia.com/x"
    fake = node({"/etc/apt/sources.list.d/cuda.list": f"deb {foreign} /\n"})
    fake.offered[package] = (dpkg.Candidate("1.0", foreign),)
    observed = state.probe(fake)
    assert state.refuse(observed) is None
    assert state.plan(observed).notes == ("other repositories of the node have the packages",)
    assert not state.plan(observed)
    assert state.preview(observed) == ""
    # Its own files stay as they should be, whatever others offer now.
    del fake.offered[package], fake.files["/etc/apt/sources.list.d/cuda.list"]
    list(converge(state, fake))
    assert state.sources_path in fake.files
    fake.offered[package] = (dpkg.Candidate("1.0", URL),)
    fake.files.pop(state.pin_path)
    assert {"pin_text"} <= state.plan(state.probe(fake)).fields
    check_contract(state, node())


def test_the_pins_let_one_host_in_and_keep_the_others_out() -> None:
    state, fake = DriverRepository(**MIRROR), node()
    list(converge(state, fake))
    allow, kept, deny = fake.files[state.pin_path].split("\n\n")[1:]
    assert 'Pin: origin "mirror.example.com"\nPin-Priority: 700' in allow
    # A rollback is offered the packages that its node kept, by apt's configuration: no repository has them.
    assert "Pin: release c=volatile-packages-file\nPin-Priority: 700" in kept
    assert "Pin: release *\nPin-Priority: -1" in deny
    assert " libcuda1:any " in allow
    assert " libcuda1:any " in kept
    assert " libcuda1:any " in deny
    assert "nvidia-container-toolkit" not in allow + deny


def test_a_vendor_key_is_fetched_by_the_node_and_pinned_by_its_fingerprint() -> None:
    state = DriverRepository(fingerprint=ONE)
    fake = node()
    first, last = converge(state, fake)
    assert "fingerprints" in first.fields
    assert not last
    source = fake.files[state.sources_path]
    assert "/compute/cuda/repos/debian12/x86_64/" in source
    assert f"Signed-By: {state.key_path} {ONE}" in source


@pytest.mark.parametrize(
    ("os_id", "release", "machine", "folder", "key"),
    [
        ("debian", "12", "x86_64", "debian12/x86_64", "3bf863cc EB693B3035CD5710E231E123A4B469963BF863CC"),
        ("debian", "13", "x86_64", "debian13/x86_64", "8793F200 02182E60104FCDC26EAE1B8597A5D4CB8793F200"),
        ("ubuntu", "22.04", "aarch64", "ubuntu2204/sbsa", "3bf863cc EB693B3035CD5710E231E123A4B469963BF863CC"),
        ("ubuntu", "26.04", "x86_64", "ubuntu2604/x86_64", "60DF8A40 14BAFBC7562AD710CA04E69905FBB6DA60DF8A40"),
        ("ubuntu", "26.04", "aarch64", "ubuntu2604/sbsa", "60DF8A40 14BAFBC7562AD710CA04E69905FBB6DA60DF8A40"),
        ("ubuntu", "28.04", "x86_64", "", "is known for ubuntu2804 on x86_64; set origin: mirror"),
        ("debian", "14", "x86_64", "", "is known for debian14 on x86_64; set origin: mirror"),
    ],
)  # fmt: skip
def test_each_folder_of_nvidias_repository_has_its_key(
    os_id: str, release: str, machine: str, folder: str, key: str
) -> None:
    there = cuda_repository(
        NodeFacts(**{**FACTS, "os_id": os_id, "os_version": release, "machine": machine})
    )
    if not folder:
        assert key in (there.problem or "")
        return
    file, fingerprint = key.split()
    assert there.key_url == f"{there.uri}/{file}.pub"
    assert (there.uri or "").endswith(f"/repos/{folder}")
    assert there.fingerprint == fingerprint


def test_a_fetched_key_with_another_fingerprint_never_counts_as_right() -> None:
    *_, last = converge(DriverRepository(), node())
    assert last.fields == {"fingerprints"}


def test_the_lists_are_read_again_when_they_or_the_source_changed() -> None:
    state, fake = DriverRepository(**MIRROR), node()
    list(converge(state, fake))
    fake.shells["/var/lib/apt/lists/"] = (0, ARCHIVE_LISTS)
    assert state.plan(state.probe(fake)).fields == {"lists_read"}
    moved = DriverRepository(**{**MIRROR, "url": URL + "-new"})
    assert {"sources_text", "lists_read"} <= moved.plan(moved.probe(fake)).fields


def test_a_cloud_image_without_any_lists_gets_those_of_its_archive_too() -> None:
    state, fake = DriverRepository(**MIRROR), node()
    fake.shells["/var/lib/apt/lists/"] = (0, "/var/lib/apt/lists/*_Packages*\n")
    list(converge(state, fake))
    labels = [step.label for step in fake.done]
    assert f"refresh the package lists of {LIST}, where there are none" in labels


def test_the_archive_gets_the_components_that_it_lacks() -> None:
    state, fake = DriverRepository(origin="distribution"), node()
    *_, last = converge(state, fake)
    assert not last
    assert "Components: contrib non-free non-free-firmware" in fake.files[state.sources_path]
    assert "Pin: release n=bookworm*" in fake.files[state.pin_path]
    assert state.key_path not in fake.files


def test_an_archive_that_has_them_needs_no_source_of_ours() -> None:
    whole = (
        "deb http://archive.example.com/debian bookworm main contrib non-free non-free-firmware\n"
    )
    state, fake = DriverRepository(origin="distribution"), node({LIST: whole})
    *_, last = converge(state, fake)
    assert not last
    assert state.sources_path not in fake.files


def of_ubuntu(components: str) -> str:
    """Sources as Ubuntu's installer writes them."""
    return (
        "Types: deb\nURIs: http://archive.example.com/ubuntu/\nSuites: noble noble-updates noble-backports\n"
        f"Components: {components}\nSigned-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n\n"
        "Types: deb\nURIs: http://security.example.com/ubuntu/\nSuites: noble-security\n"
        f"Components: {components}\nSigned-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n\n"
        "Types: deb\nURIs: https://esm.example.com/infra/ubuntu\nSuites: noble-infra-security\nComponents: main\n"
    )


NOBLE: dict[str, Any] = {"os_id": "ubuntu", "os_version": "24.04", "os_codename": "noble"}


@pytest.mark.parametrize(
    ("there", "added"),
    [
        ("main", "restricted multiverse"),
        ("main universe restricted", "multiverse"),
        ("main multiverse", "restricted"),
    ],
)
def test_every_suite_of_the_archive_with_drivers_gets_the_components_that_it_lacks(
    there: str, added: str
) -> None:
    texts = {LIST: "", "/etc/apt/sources.list.d/ubuntu.sources": of_ubuntu(there)}
    state, fake = DriverRepository(origin="distribution"), node(texts, **NOBLE)
    *_, last = converge(state, fake)
    assert not last
    tail = f"Components: {added}\nSigned-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n"
    assert fake.files[state.sources_path] == (
        "# Written by gpustate; changes are overwritten.\n"
        f"Types: deb\nURIs: http://archive.example.com/ubuntu/\nSuites: noble noble-updates\n{tail}\n"
        f"Types: deb\nURIs: http://security.example.com/ubuntu/\nSuites: noble-security\n{tail}"
    )
    # The lists of the node's own entries, from the same addresses, are not gpustate's.
    absent = DriverRepository(origin="distribution", ensure="absent")
    observed = absent.probe(fake)
    steps = list(absent.apply(observed, absent.plan(observed)))
    (forget,) = [one for one in steps if one.label.startswith("remove the package lists")]
    text = str(forget)
    for part in added.split():
        assert f"archive.example.com_ubuntu_dists_noble-updates_{part}_*" in text
        assert f"security.example.com_ubuntu_dists_noble-security_{part}_*" in text
    assert "_main_" not in text
    assert "ubuntu_*" not in text


def test_only_suites_that_lack_a_component_are_added() -> None:
    whole, lacking = of_ubuntu("main restricted multiverse"), of_ubuntu("main").split("\n\n")[1]
    texts = {LIST: "", "/etc/apt/sources.list.d/ubuntu.sources": whole}
    state, fake = DriverRepository(origin="distribution"), node(texts, **NOBLE)
    assert state.desired(state.probe(fake)).sources_text is None
    first, _, last = whole.split("\n\n")
    texts["/etc/apt/sources.list.d/ubuntu.sources"] = "\n\n".join((first, lacking, last))
    fake = node(texts, **NOBLE)
    (source,) = aptsources.parse_sources(
        {"x.sources": state.desired(state.probe(fake)).sources_text or ""}
    )
    assert (source.suite, source.host) == ("noble-security", "security.example.com")


def test_a_foreign_source_with_the_suite_of_the_archive_is_none_of_it() -> None:
    """HashiCorp's, PPAs: suite ``noble``, component ``main``, and no updates beside it."""
    paths = ("/etc/apt/sources.list.d/a.list", "/etc/apt/sources.list.d/ubuntu.sources")
    foreign = "deb https://apt.vendor.example noble main\n"
    state = DriverRepository(origin="distribution")
    lacking = node(
        {LIST: "", **dict(zip(paths, (foreign, of_ubuntu("main")), strict=True))}, **NOBLE
    )
    wanted = state.desired(state.probe(lacking))
    assert "apt.vendor.example" not in (wanted.sources_text or "")
    assert 'Pin: origin "apt.vendor.example"\nPin-Priority: -1' in (wanted.pin_text or "")
    whole = of_ubuntu("main restricted multiverse")
    fake = node({LIST: "", **dict(zip(paths, (foreign, whole), strict=True))}, **NOBLE)
    observed = state.probe(fake)
    steps = list(state.apply(observed, state.plan(observed)))
    (update,) = [step for step in steps if isinstance(step, ops.AptUpdate)]
    assert update.hosts == ("archive.example.com", "security.example.com", "esm.example.com")
    alone = node({LIST: "deb http://archive.example.com/ubuntu noble main\n"}, **NOBLE)
    assert state.probe(alone).where.hosts == ("archive.example.com",), "without updates"


def test_the_security_pocket_of_an_archive_may_have_another_host() -> None:
    components = "main contrib non-free non-free-firmware"
    text = (
        f"deb http://archive.example.com/debian bookworm {components}\n"
        f"deb http://security.example.com/debian bookworm-security {components}\n"
        f"deb http://other.example.com/debian bookworm-proposed {components}\n"
    )
    state, fake = DriverRepository(origin="distribution"), node({LIST: text})
    list(converge(state, fake))
    pins = fake.files[state.pin_path]
    assert "Pin: release n=bookworm*\nPin-Priority: 700" in pins
    assert "archive.example.com" not in pins
    assert "security.example.com" not in pins
    assert 'Pin: origin "other.example.com"\nPin-Priority: -1' in pins


CUDA = "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
CUDA_URL = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64"


def test_another_source_of_the_driver_is_refused_with_its_file() -> None:
    state = DriverRepository(**MIRROR)
    fake = node({CUDA: f"deb [signed-by=/usr/share/keyrings/x.gpg] {CUDA_URL}/ /\n"})
    why = state.refuse(state.probe(fake))
    assert why is not None
    assert why.startswith(f"NVIDIA packages also come from {CUDA}:1: {CUDA_URL};")
    assert "exclusive" in why


def test_exclusive_leaves_it_there_and_pins_it_away() -> None:
    state = DriverRepository(**MIRROR, exclusive=True)
    text = f"deb [signed-by=/usr/share/keyrings/x.gpg] {CUDA_URL}/ /\n"
    fake = node({CUDA: text})
    observed = state.probe(fake)
    assert state.refuse(observed) is None
    assert state.plan(observed).notes == (f"pinned away: {CUDA}:1: {CUDA_URL}",)
    list(converge(state, fake))
    assert fake.files[CUDA] == text


def test_the_same_address_with_another_key_is_refused_even_then() -> None:
    state = DriverRepository(exclusive=True)
    fake = node({CUDA: f"deb [signed-by=/usr/share/keyrings/x.gpg] {CUDA_URL}/ /\n"})
    why = state.refuse(state.probe(fake))
    assert why is not None
    assert "cuda-keyring" in why


def test_the_same_host_cannot_be_pinned_apart() -> None:
    other = f"deb {URL}/graphics-drivers/x/ /\n"
    state = DriverRepository(**MIRROR, exclusive=True)
    why = state.refuse(state.probe(node({CUDA: other})))
    assert why is not None
    assert "same host" in why


@pytest.mark.parametrize(
    ("state", "host", "denied"),
    [
        (DriverRepository(**MIRROR), "mirror.example.com", True),
        (DriverRepository(**MIRROR), "archive.example.com", False),
        # A mirror with suites may be one of the archive itself.
        (
            DriverRepository(**MIRROR, suite="bookworm", components=("non-free",)),
            "mirror.example.com",
            False,
        ),
        (ToolkitRepository(**MIRROR), "mirror.example.com", False),
    ],
)
def test_the_archive_on_the_host_of_a_flat_mirror_offers_no_driver(
    state: DriverRepository | ToolkitRepository, host: str, denied: bool
) -> None:
    fake = node({LIST: f"deb http://{host}/debian bookworm-updates main non-free\n"})
    text = state.desired(state.probe(fake)).pin_text or ""
    first = text.split("Pin: ")[1]
    assert first.startswith("release n=bookworm*\nPin-Priority: -1") == denied


def test_another_repository_on_the_host_of_the_archive_offers_no_driver() -> None:
    archive = "deb http://deb.debian.org/debian bookworm main\n"
    flat = node({LIST: f"{archive}deb http://deb.debian.org/nvidia/ /\n"})
    ppa = node({LIST: f"{archive}deb http://ppa.example.com/graphics-drivers bookworm main\n"})
    state = DriverRepository(origin="distribution", exclusive=True)
    for fake, denied in (flat, []), (ppa, ['origin "ppa.example.com" -1']):
        list(converge(state, fake))
        text = fake.files[state.pin_path].replace("\nPin-Priority:", "")
        pins = [line[5:] for line in text.splitlines() if line.startswith("Pin: ")]
        assert pins[:-2] == [*denied, "release n=bookworm* 700"]
        assert pins[-1] == "release * -1"


def test_the_toolkits_repository_and_the_drivers_do_not_mind_each_other() -> None:
    cuda = node({CUDA: f"deb {CUDA_URL}/ /\n"})
    toolkit = ToolkitRepository(**MIRROR)
    assert toolkit.refuse(toolkit.probe(cuda)) is None
    other = node({CUDA: "deb https://nvidia.github.io/libnvidia-container/stable/deb/amd64 /\n"})
    driver = DriverRepository(**MIRROR)
    assert driver.refuse(driver.probe(other)) is None


def test_a_cdrom_is_named_and_left_alone() -> None:
    fake = node({LIST: "deb cdrom:[Debian]/ bookworm main\n" + ARCHIVE})
    state = DriverRepository(**MIRROR)
    assert any("apt may prompt for a disc" in note for note in state.plan(state.probe(fake)).notes)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"package_manager": "", "os_id": "azurelinux"}, "no apt, dnf or zypper"),
        ({"machine": "riscv64"}, "set origin: mirror"),
    ],
)
def test_a_node_it_does_not_fit_is_refused(facts: dict[str, Any], says: str) -> None:
    state = DriverRepository()
    why = state.refuse(state.probe(node(**facts)))
    assert why is not None
    assert says in why


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"origin": "mirror"}, "needs url and key"),
        ({"url": URL}, "belongs to origin 'mirror'"),
        ({"origin": "distribution", "key": KEY}, "remove key"),
        ({**MIRROR, "key": "/no/such/key.asc"}, "cannot be read"),
        ({**MIRROR, "key": "nonsense"}, "no public key"),
        ({**MIRROR, "key": "key.asc"}, "key.asc is a relative path; wanted an absolute one"),
        ({**MIRROR, "key": "./keys/k"}, "./keys/k is a relative path; wanted an absolute one"),
        ({**MIRROR, "key": "http://mirror.example.com/key.asc"}, "needs fingerprint"),
        ({**MIRROR, "fingerprint": "0" * 40}, f"has fingerprint {ONE}"),
        ({**MIRROR, "fingerprint": "9AD30799"}, "short key id"),
        ({**MIRROR, "suite": "stable"}, "needs components"),
        ({**MIRROR, "components": ["main"]}, "has no components"),
        ({**MIRROR, "url": "mirror.example.com"}, "http, https or file"),
        ({**MIRROR, "pin_priority": 0}, "wanted 1 or more"),
    ],
)
def test_wrong_parameters_are_refused_before_any_node_is_reached(
    given: dict[str, Any], says: str
) -> None:
    with pytest.raises(PolicyError, match=says):
        build(DriverRepository, given)


def test_a_key_file_is_read_at_once_so_that_a_plan_carries_the_key() -> None:
    state = build(DriverRepository, {**MIRROR, "key": str(DATA / "one.asc")})
    assert parameters(state)["key"] == KEY


@pytest.mark.parametrize("word", ["'$(touch${IFS}/x)'", "$(x)", ";x", "`x`"])
def test_the_address_of_a_key_is_one_word_of_the_script_that_fetches_it(word: str) -> None:
    url = f"https://keys.example.com/{word}"
    state = build(DriverRepository, {**MIRROR, "key": url, "fingerprint": ONE})
    observed = state.probe(node())
    step = next(s for s in state.apply(observed, state.plan(observed)) if isinstance(s, ops.Run))
    line = next(line for line in step.text.splitlines() if "download-file" in line)
    assert shlex.split(line)[-2] == url


def test_the_version_a_node_names_is_no_part_of_a_script() -> None:
    """It is a part of the address of NVIDIA's repository."""
    state = DriverRepository()
    observed = state.probe(node(os_version="12'$(touch /x)'"))
    for step in state.apply(observed, state.plan(observed)):
        if isinstance(step, ops.Run) and "download-file" in step.text:
            line = next(line for line in step.text.splitlines() if "download-file" in line)
            assert "$(touch /x)" in shlex.split(line)[-2]


@pytest.mark.parametrize(
    "given",
    [
        {**MIRROR, "suite": "stable\nTrusted: yes", "components": ["main"]},
        {**MIRROR, "suite": "stable", "components": ["main other"]},
        {**MIRROR, "url": URL + "\n"},
    ],
)
def test_what_would_be_another_line_of_a_source_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        build(DriverRepository, given)


@pytest.mark.parametrize("state", [DriverRepository(**MIRROR), DriverRepository(fingerprint=ONE)])
def test_a_key_that_apt_cannot_read_is_given_back_to_root_for_all_to_read(
    state: DriverRepository,
) -> None:
    fake = node()
    list(converge(state, fake))
    there = FileStat("file", 0o000, 1, 1, len(KEY))
    query = FileStats((state.key_path,))
    fake.answers[query] = {state.key_path: there}
    observed = state.probe(fake)
    plan = state.plan(observed)
    assert plan.fields == {"key_access"}
    assert plan.changes[0].before == "owner 1:1, mode 0000"
    (only,) = state.apply(observed, plan)
    assert only.script() == f"chown 0:0 {state.key_path}; chmod u+w,a+rX,go-w {state.key_path}"
    fake.answers[query] = {state.key_path: replace(there, mode=0o644, uid=0, gid=0)}
    assert not state.plan(state.probe(fake))


@pytest.mark.parametrize("absent", [False, True])
def test_what_came_of_a_bundle_goes_once_none_is_wanted(absent: bool) -> None:
    ensure: dict[str, Any] = {"ensure": "absent"} if absent else {}
    state, fake = DriverRepository(**MIRROR, **ensure), node()
    list(converge(state, fake))
    folder = FileStat("dir", 0o755, 0, 0, 0)
    query = FileStats((BUNDLE_FOLDER, APT_CONF, RPM_REPOS))
    fake.answers[query] = {BUNDLE_FOLDER: folder}
    observed = state.probe(fake)
    plan = state.plan(observed)
    assert plan.fields == {"half_bundle"}
    step = next(step for step in state.apply(observed, plan) if "came from a bundle" in step.label)
    # Another state may have finished it by then.
    assert step.script().startswith(f"[ -e {APT_CONF} ] || [ -e {RPM_REPOS} ] || rm -rf")
    fake.answers[query] = {BUNDLE_FOLDER: folder, APT_CONF: folder}
    assert not state.plan(state.probe(fake))


def test_what_came_of_a_bundle_stays_for_the_next_attempt() -> None:
    state = DriverRepository(origin="mirror", url=f"file:{BUNDLE_FOLDER}/aa/driver", key=KEY)
    fake = node()
    query = FileStats((BUNDLE_FOLDER, APT_CONF, RPM_REPOS))
    fake.answers[query] = {BUNDLE_FOLDER: FileStat("dir", 0o755, 0, 0, 0)}
    assert "half_bundle" not in state.plan(state.probe(fake)).fields


def test_a_key_s_folder_that_apt_s_own_user_cannot_enter_is_opened_before_lists_are_read() -> None:
    state, fake = DriverRepository(**MIRROR), node()
    query = FileStats(KEY_FOLDERS)
    fake.answers[query] = {
        "/etc/apt": FileStat("dir", 0o755, 0, 0, 0),
        "/etc/apt/keyrings": FileStat("dir", 0o700, 0, 0, 0),
    }
    observed = state.probe(fake)
    plan = state.plan(observed)
    change = next(one for one in plan.changes if one.field == "folder_access")
    assert change.before == "/etc/apt/keyrings: mode 0700"
    first, *_ = state.apply(observed, plan)
    assert "chmod a+rx" in first.script()
    gone = DriverRepository(**MIRROR, ensure="absent")
    assert "folder_access" not in gone.plan(gone.probe(fake)).fields


def test_lists_are_read_again_where_others_may_change_what_says_that_they_were() -> None:
    state, fake = DriverRepository(**MIRROR), node()
    list(converge(state, fake))
    assert fake.modes[state.stamp_path] == 0o600
    fake.modes[state.stamp_path] = 0o666
    first, last = converge(state, fake)
    assert first.fields == {"lists_read"}
    assert not last


PASSWORD = "S3cr3t/of:the%mirror"
PRIVATE: dict[str, Any] = {**MIRROR, "username": "ops", "password": PASSWORD}
AUTH = "/etc/apt/auth.conf.d/gpustate-driver-repository.conf"


@pytest.mark.parametrize("given", [PRIVATE, {**MIRROR, "url": URL.replace("://", f"://ops:{quote(PASSWORD, safe='')}@")}])  # fmt: skip
def test_a_login_goes_into_apt_s_own_file_and_nowhere_else(given: dict[str, Any]) -> None:
    state, fake = build(DriverRepository, given), node()
    assert DriverRepository(**given) == state
    assert parameters(state) == PRIVATE
    first, last = converge(state, fake)
    assert not last
    assert fake.files.pop(AUTH) == (
        f"machine http://mirror.example.com/nvidia/debian12\nlogin ops\npassword {PASSWORD}\n"
    )
    assert PASSWORD not in repr(fake.files)
    (change,) = (change for change in first.changes if change.field == "logins")
    assert change.secret
    (step,) = (s for s in fake.done if isinstance(s, ops.PutText) and s.path == AUTH)
    assert (step.secret, step.mode) == (True, 0o600)
    assert PASSWORD not in mask(repr(first))
    assert PASSWORD not in repr([step.label for step in fake.done])


def test_a_login_that_changed_is_tried_at_once_and_one_that_is_gone_is_removed() -> None:
    fake = node()
    list(converge(DriverRepository(**PRIVATE), fake))
    other = DriverRepository(**{**PRIVATE, "password": "another-S3cr3t"})
    assert other.plan(other.probe(fake)).fields == {"logins", "lists_read"}

    def removed(fake: FakeNode) -> None:
        del fake.files[AUTH]

    fake.runs["remove the login"] = removed
    without = DriverRepository(**MIRROR)
    first, last = converge(without, fake)
    assert first.fields == {"logins", "lists_read"}
    assert not last
    assert AUTH not in fake.files


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"username": "ops", "password": PASSWORD}, "belong to origin 'mirror'"),
        ({**MIRROR, "username": "ops"}, "needs a password"),
        ({**MIRROR, "password": PASSWORD}, "needs a username"),
        ({**PRIVATE, "password": f"{PASSWORD} x"}, "password: wanted a word without spaces"),
        ({**PRIVATE, "url": URL.replace("://", "://ops:other-S3cr3t@")}, "url has another password than"),
        ({**MIRROR, "url": URL.replace("://", "://ops:a%20S3cr3t@")}, "characters that apt cannot read"),
        ({**PRIVATE, "key": "https://keys.example.com/k", "fingerprint": ONE}, "is on another host than url"),
    ],
)  # fmt: skip
def test_a_wrong_login_is_refused_without_being_shown(given: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says) as caught:
        build(DriverRepository, given)
    assert "S3cr3t" not in mask(str(caught.value))


class _Private(SimpleHTTPRequestHandler):
    """Serves its folder to who has the login."""

    wanted = "Basic " + base64.b64encode(f"ops:{PASSWORD}".encode()).decode()

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == self.wanted:
            super().do_GET()
        else:
            self.send_error(401)

    def log_message(self, format: str, *args: object) -> None:
        """A test is quiet."""


HELPER = Path("/usr/lib/apt/apt-helper")


@pytest.mark.parametrize(
    "manager",
    [
        pytest.param("apt", marks=pytest.mark.skipif(not HELPER.exists(), reason="no apt here")),
        "dnf",
        "zypper",
    ],
)
def test_programs_themselves_log_in_with_what_is_written(tmp_path: Path, manager: str) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "key").write_text("a key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Private, directory=f"{tmp_path}/www"))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/key"
        files = logins.files(manager, "x", logins.Login("ops", PASSWORD), (url,))
        for path, text in files.items():
            file = tmp_path / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        if manager == "apt":
            where = f"Dir::Etc::netrcparts={tmp_path}/etc/apt/auth.conf.d"
            options = ["-o", where, "-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=0"]
            words = [str(HELPER), *options, "download-file", url, f"{tmp_path}/got"]
        else:
            text = logins.curl_configuration(manager, "x").replace("/etc/", f"{tmp_path}/etc/")
            words = ["sh", "-c", f'R={tmp_path}\n{text}curl -fsS -K "$c" -o {tmp_path}/got {url}']
        said = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "got").read_text() == "a key"


@pytest.mark.parametrize(
    ("manager", "rows"),
    [
        (
            "dnf",
            "username=$gpustate_driver_repository_username\n"
            "password=$gpustate_driver_repository_password\n",
        ),
        ("zypper", f"baseurl={URL}?credentials=gpustate-driver-repository\n"),
    ],
)
def test_a_repo_file_says_where_its_login_is_and_not_what_it_is(manager: str, rows: str) -> None:
    facts = NodeFacts(os_id="rocky", os_version="9", machine="x86_64", package_manager=manager)
    state = DriverRepository(**PRIVATE)
    where = state.rpm_place(facts)
    text = state._text(where, manager)
    assert rows in text
    assert PASSWORD not in text
    assert rows not in state._text(replace(where, private=False), manager)


UBUNTU: dict[str, Any] = {"os_id": "ubuntu", "os_version": "22.04", "os_codename": "jammy"}


@pytest.mark.parametrize("state", [DriverRepository(), DriverRepository(origin="distribution")])
def test_a_node_between_two_releases_of_ubuntu_is_left_alone(state: DriverRepository) -> None:
    def sources(*suites: str) -> str:
        lines = (f"deb http://archive.example.com/ubuntu {one} main restricted\n" for one in suites)
        return "".join(lines)

    halfway = node({LIST: sources("noble", "noble-updates", "noble-security")}, **UBUNTU)
    assert state.refuse(state.probe(halfway)) == (
        "apt's sources are of noble, and this node is jammy (/etc/os-release): a release upgrade is under way; "
        "finish it, then apply again"
    )
    for rest in (sources("jammy", "jammy-security", "noble", "noble-security"), sources("noble")):
        refused = state.refuse(state.probe(node({LIST: rest}, **UBUNTU)))
        assert "release upgrade" not in (refused or "")
