"""What breaks no link is told as a warning, and a healthy twin is told nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from brokennodes import (
    CRI_OK,
    PATHLESS,
    WHOLE,
    at_boot,
    cri,
    divided,
    docker,
    drop_in,
    file,
    mig,
    programs,
    specification,
)
from nodetrees import LIBRARIES, Tree, World

from gpustate.cli.explain import diagnosis_page, verdict
from gpustate.core.encode import plain
from gpustate.diagnosis import chain
from gpustate.explain import walk
from gpustate.explain.causes import Cause
from gpustate.plan.render import Page

Change = Callable[[World], object]
PARAMS = "proc/driver/nvidia/params"
SPEC = "var/run/cdi/nvidia.yaml"
TOOLKIT = "etc/nvidia-container-runtime/config.toml"


def diagnosis(folder: Path, *changes: Change) -> walk.Diagnosis:
    world = World()
    for change in changes:
        change(world)
    return walk.diagnose(Tree(world, folder / "node").view())


def mode(path: str, value: int) -> Change:
    return lambda world: world.modes.__setitem__(path, value)


def params(file_mode: int, modify: int = 1, owner: int = 0) -> Change:
    ids = f"DeviceFileUID: {owner}\nDeviceFileGID: {owner}\n" if owner else ""
    text = f"ModifyDeviceFiles: {modify}\nDeviceFileMode: {file_mode}\n{ids}Registry: ''\n"
    return file(PARAMS, text)


PERSISTENCED = "nvidia-persistenced"


def persistence(*, on: bool) -> Change:
    def change(world: World) -> None:
        gpus = tuple(replace(gpu, persistence_mode=on) for gpu in world.nvml.gpus)
        world.nvml = replace(world.nvml, gpus=gpus)

    return change


def stopped(state: str) -> Change:
    return lambda world: world.unit(PERSISTENCED, state)


def removed(name: str, state: str) -> tuple[Change, ...]:
    """A unit that systemd remembers and whose file is gone."""
    return (lambda w: w.unit(name, state), lambda w: w.removed_units.add(name))


WARNED = (
    ((file("run/nvidia", "x"),), "/run/nvidia is a regular file, not a folder"),
    (
        (lambda w: w.links.__setitem__("run/nvidia/validations", "run/gone"),),
        "/run/nvidia/validations is a link to /run/gone, which",
    ),
    (
        (drop_in(PERSISTENCED), lambda w: w.unit(PERSISTENCED, "failed/failed/enabled")),
        f"{PERSISTENCED}.service.d/x.conf has ExecStart=/bin/false; without it",
    ),
    (
        (persistence(on=False), stopped("inactive/dead/masked")),
        f"{PERSISTENCED} is masked; without it",
    ),
    (
        (persistence(on=False), stopped("inactive/dead/enabled")),
        f"{PERSISTENCED} is enabled and does not run; without it",
    ),
    (
        (drop_in("gpustate-mig"), lambda w: w.unit("gpustate-mig", "failed/failed/enabled")),
        "gpustate-mig.service.d/x.conf has ExecStart=/bin/false; this boot did not create all MIG devices",
    ),
    (
        (lambda w: w.unit("gpustate-mig", "active/exited/disabled"),),
        "gpustate-mig is not enabled: the next boot creates no MIG devices",
    ),
    (
        (at_boot("gpustate-mig", "active/exited/enabled", on_disk=False),),
        "gpustate-mig is not enabled",
    ),
    (
        (
            mig,
            divided,
            lambda w: w.one_gpu(1, mig_devices=()),
            lambda w: w.cdi.__setitem__(SPEC, ["0:0", "0:1", "all"]),
        ),
        "GPU 1 has 0 of 2 MIG devices that the state mig created; recreate them (state mig): gpustate apply POLICY -l NODE",
    ),
    ((mode("dev/nvidia0", 0),), "/dev/nvidia0 has mode 0000 instead of 0666"),
    (
        (mode("dev/nvidia0", 0o600), mode("dev/nvidia1", 0o600)),
        "/dev/nvidia0, /dev/nvidia1 have mode 0600 instead of 0666",
    ),
    ((mode("dev/nvidia0", 0o600), params(0o660)), "instead of 0660"),
    ((mode("dev/nvidia0", 0o400), params(0o666, modify=0)), "/dev/nvidia0 has mode 0400"),
    ((mode("var/run/cdi", 0o700),), "/var/run/cdi has mode 0700"),
    ((mode(SPEC, 0o600),), f"/{SPEC} has mode 0600"),
    (
        (file(TOOLKIT, ""), mode(TOOLKIT, 0o600)),
        f"/{TOOLKIT} has mode 0600: rootless containers cannot read it; chmod 0644 /{TOOLKIT} (state container-toolkit)",
    ),
    (
        (
            file(
                TOOLKIT,
                '[nvidia-container-cli]\nno-cgroups = true\n[nvidia-container-runtime]\nmode = "legacy"\n',
            ),
        ),
        f"/{TOOLKIT}: no-cgroups = true: containers of docker run --gpus",
    ),
    (
        (mode("dev/nvidia0", 0o660), mode("dev/nvidia1", 0o660), params(0o660, owner=4_000_000)),
        "belong to others than 4000000:4000000",
    ),
    (
        (lambda w: w.specs.__setitem__("etc/cdi/nvidia.yaml", "{"),),
        "/etc/cdi/nvidia.yaml:2: is not YAML",
    ),
    (
        (file("etc/modprobe.d/x.conf", "install nvidia-modeset /bin/true\n"),),
        "/etc/modprobe.d/x.conf:1 (install nvidia_modeset /bin/true)",
    ),
)
TWINS = (
    (file("run/nvidia/validations/driver-ready"),),
    (drop_in(PERSISTENCED), lambda w: w.unit(PERSISTENCED, "active/running/enabled")),
    (persistence(on=True), stopped("inactive/dead/masked")),
    (lambda w: w.unit("gpustate-mig", "active/exited/enabled"),),
    (at_boot("gpustate-mig", "active/exited/disabled", on_disk=True),),
    (mig, divided),
    (
        mig,
        lambda w: w.one_gpu(1, mig_devices=()),
        lambda w: w.cdi.__setitem__(SPEC, ["0:0", "0:1", "all"]),
    ),
    (persistence(on=False), stopped("inactive/dead/disabled")),
    (mode("dev/nvidia0", 0o660), params(0o660)),
    (mode("dev/nvidia0", 0o660), params(0o666, modify=0)),
    (params(0o666),),
    (params(0o666, owner=4_000_000),),
    (params(0o660, modify=0, owner=4_000_000),),
    (file(TOOLKIT, ""), mode(TOOLKIT, 0o644)),
    (file(PARAMS, "DeviceFileMode: banana\n"),),
    (lambda w: w.specs.__setitem__("etc/cdi/vendor.yaml", "kind: other.com/nic\n{"),),
    (mode("etc/cdi", 0o755), mode(SPEC, 0o644)),
    removed("gpustate-mig", "active/exited/disabled"),
    removed("gpustate-mig", "failed/failed/enabled"),
    removed("nvidia-dcgm-exporter", "inactive/dead/enabled"),
)


@pytest.mark.parametrize(("changes", "words"), WARNED, ids=[words for _, words in WARNED])
def test_what_only_users_suffer_from_is_a_warning(
    changes: tuple[Change, ...], words: str, tmp_path: Path
) -> None:
    found = diagnosis(tmp_path, *changes)
    assert found.broken is None, found.broken
    assert len(found.warnings) == 1
    assert words in found.warnings[0]


@pytest.mark.parametrize("changes", TWINS)
def test_a_sites_own_modes_and_files_are_no_warning(
    changes: tuple[Change, ...], tmp_path: Path
) -> None:
    found = diagnosis(tmp_path, *changes)
    assert (found.broken, found.warnings) == (None, ())


def test_a_node_whose_cuda_nobody_proved_is_not_called_whole(tmp_path: Path) -> None:
    unproven = diagnosis(tmp_path / "a")
    assert verdict(unproven)[0] == "no check failed; CUDA is not validated"
    assert verdict(diagnosis(tmp_path / "b", World.prove))[0] == "all checks passed"
    gone = diagnosis(tmp_path / "c", lambda w: w.cdi.clear())
    assert verdict(gone)[0] == "failed: cdi (cdi-missing)"


def test_a_specification_that_is_torn_behind_its_kind_is_broken(tmp_path: Path) -> None:
    def torn(world: World) -> None:
        world.cdi.clear()
        world.specs[SPEC] = WHOLE + "  - {\n"

    found = diagnosis(tmp_path, torn)
    assert found.name == "cdi-broken"


def test_a_damaged_containerd_configuration_is_told_with_what_is_kept_of_it(tmp_path: Path) -> None:
    kept = "var/lib/gpustate/originals"
    failed = {"containerd": "!containerd: failed to load TOML: (7, 3): expected ]\n"}

    def damaged(world: World) -> None:
        world.programs |= failed
        world.files |= {
            f"{kept}/aaaa.path": "/etc/containerd/config.toml",
            f"{kept}/aaaa": "version = 3\n",
            f"{kept}/bbbb.path": "/etc/containerd/conf.d/99-nvidia.toml",
        }

    found = diagnosis(tmp_path / "a", damaged)
    assert found.name == "containerd-configuration-broken"
    assert found.broken is not None
    told = f"; original of /etc/containerd/config.toml: /{kept}/aaaa"
    assert found.broken.evidence.endswith(told)

    failed["containerd"] = "!containerd: /etc/containerd/conf.d/99-nvidia.toml: expected ]\n"
    other = diagnosis(tmp_path / "b", damaged)
    assert other.broken is not None
    assert (
        "/etc/containerd/conf.d/99-nvidia.toml did not exist before gpustate"
        in other.broken.evidence
    )
    assert "aaaa" not in other.broken.evidence


def test_a_toolkit_configuration_that_is_a_folder_is_told(tmp_path: Path) -> None:
    found = diagnosis(tmp_path, lambda w: w.folders.add("etc/nvidia-container-runtime/config.toml"))
    assert found.name == "toolkit-configuration-broken"
    assert found.broken is not None
    assert "is a directory" in found.broken.evidence


def test_a_masked_exporter_is_told_where_its_engine_runs(tmp_path: Path) -> None:
    def masked(world: World) -> None:
        world.unit("nvidia-dcgm", "active/running/enabled")
        world.unit("nvidia-dcgm-exporter", "inactive/dead/masked")

    found = diagnosis(tmp_path, masked)
    assert found.broken is None
    assert any("nvidia-dcgm-exporter is masked" in line for line in found.warnings)


ALL = "blacklist nvidia\nblacklist nvidia-uvm\nblacklist nvidia-modeset\n"


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        (ALL, ["nvidia", "nvidia-uvm", "nvidia-modeset"]),
        ("blacklist nvidia\n", []),  # nvidia-uvm brings it
        ("blacklist nvidia_uvm\n", ["nvidia-uvm"]),
        ("# blacklist nvidia-uvm\n", []),
    ],
)
def test_modules_that_no_boot_loads_are_told_while_they_are_loaded(
    text: str, modules: list[str], tmp_path: Path
) -> None:
    world = World()
    world.files["etc/modules-load.d/gpustate-nvidia.conf"] = (
        "# x\nnvidia\n nvidia-uvm\nnvidia-modeset\n"
    )
    world.files["etc/modprobe.d/zz-acme.conf"] = text
    found = walk.diagnose(Tree(world, tmp_path / "node").view())
    assert found.broken is None
    assert [one.partition(" loading ")[2].partition(",")[0] for one in found.warnings] == modules
    assert all(one.startswith("/etc/modprobe.d/zz-acme.conf:") for one in found.warnings)


@pytest.mark.parametrize(
    ("dependencies", "words"),
    [
        (None, "kernel 6.1.0-99 is bootable and has no nvidia module"),
        ("kernel/x.ko:\nextra/nvidia-fs.ko:\n", "kernel 6.1.0-99 is bootable"),
        ("updates/dkms/nvidia.ko.xz:\n", ""),
        ("updates/dkms/nvidia-current.ko:\n", ""),
    ],
)
def test_a_kernel_that_would_boot_without_the_module_is_told(
    dependencies: str | None, words: str, tmp_path: Path
) -> None:
    world = World()
    world.files |= {f"boot/vmlinuz-{name}": "" for name in ("6.1.0-99", world.kernel, "0-rescue")}
    world.folders.add("lib/modules/6.1.0-99/kernel")
    if dependencies is not None:
        world.files["lib/modules/6.1.0-99/modules.dep"] = dependencies
    found = walk.diagnose(Tree(world, tmp_path / "node").view())
    assert found.broken is None
    assert len(found.warnings) == bool(words)
    assert words in "".join(found.warnings)


def test_a_warning_comes_after_what_is_said_of_the_cause() -> None:
    check = chain.Check("cdi", chain.FAILED, "a file is missing", "put it back")
    cause = Cause("x", "cdi", lambda _: "", "put it back", state="driver")
    found = walk.Diagnosis((check,), ("health",), cause, ("nvidia-persistenced failed",))
    row = {"checks": plain(found.checks), "repaired_by": "driver", "seen_before": []}
    page = Page()
    diagnosis_page(page, found, row)
    told = [line.split()[0] for line in page.plain().splitlines()]
    assert told == ["x", "next:", "-", "!"]


@pytest.mark.parametrize(
    ("hook", "named", "words"),
    [
        ("nvidia-cdi-hook", "libnvidia-ml.so.580.65.06", "libcuda.so.580.65.06, so no container"),
        ("nvidia-cdi-hook", "libcuda.so.580.65.06", ""),
        ("my-own-hook", "libnvidia-ml.so.580.65.06", ""),
    ],
)
def test_a_specification_that_lacks_a_file_of_the_driver_is_told(
    hook: str, named: str, words: str, tmp_path: Path
) -> None:
    world = World()
    world.cdi.clear()
    world.files |= {f"usr/bin/{hook}": "", "lib/firmware/nvidia/580.65.06/gsp_x.bin": ""}
    mounts = "".join(
        f"  - hostPath: @TREE@/{path}\n    containerPath: /{path}\n"
        for path in (
            f"{LIBRARIES}/libnvidia-ml.so.580.65.06",
            f"{LIBRARIES}/{named}",
            "lib/firmware/nvidia/580.65.06/gsp_x.bin",
        )
    )
    world.specs[SPEC] = (
        f"{WHOLE}containerEdits:\n  hooks:\n  - hookName: createContainer\n    path: @TREE@/usr/bin/{hook}\n  mounts:\n{mounts}"
    )
    found = walk.diagnose(Tree(world, tmp_path / "node").view())
    assert found.broken is None
    assert len(found.warnings) == bool(words)
    assert words in "".join(found.warnings)


#: ``systemd-analyze verify`` of systemd 252, of a node with docker ordered after the refresh of toolkit 1.19.0.
CYCLE = """\
/lib/systemd/system/foo.service:3: Unknown key name 'Foo' in section 'Unit', ignoring.
multi-user.target: Found ordering cycle on docker.service/start
multi-user.target: Found dependency on nvidia-cdi-refresh.service/start
multi-user.target: Found dependency on multi-user.target/start
multi-user.target: Job docker.service/start deleted to break ordering cycle starting with multi-user.target/start
"""


def cycle(text: str = CYCLE) -> Change:
    return lambda world: world.programs.__setitem__("systemd-analyze", text)


@pytest.mark.parametrize("state", ["active/running/enabled", "inactive/dead/enabled"])
def test_a_runtime_that_no_boot_starts_fails_the_check(tmp_path: Path, state: str) -> None:
    found = diagnosis(tmp_path, docker(state, only=True), cycle())
    assert found.broken is not None
    assert (found.broken.name, found.warnings) == ("runtime", ())
    assert found.broken.evidence == (
        "each boot leaves out one of docker.service, nvidia-cdi-refresh.service, multi-user.target: "
        "systemd breaks their ordering cycle"
    )
    remedy = found.broken.remedy
    assert (
        "systemctl cat docker.service nvidia-cdi-refresh.service; then: systemctl daemon-reload"
        in remedy
    )
    assert "toolkit 1.19.1 or later" in remedy
    twin = diagnosis(tmp_path / "twin", docker("active/running/enabled", only=True), cycle(""))
    assert (twin.broken, twin.warnings) == (None, ())


def test_what_writes_the_specification_is_left_out_as_well(tmp_path: Path) -> None:
    """Which unit of a cycle systemd leaves out, and so which cycles it reports, differs from boot to boot."""
    other = CYCLE.replace("Job docker", "Job nvidia-cdi-refresh").replace("docker", "containerd")
    found = diagnosis(tmp_path, docker("active/running/enabled", only=True), cycle(other))
    assert found.broken is not None
    assert "containerd.service, nvidia-cdi-refresh.service" in found.broken.evidence


def test_another_service_that_no_boot_starts_is_a_warning(tmp_path: Path) -> None:
    others = CYCLE.replace("docker", "nvidia-persistenced").replace("nvidia-cdi-refresh", "site")
    found = diagnosis(tmp_path, cycle(others + others.replace("nvidia-persistenced", "cups")))
    assert found.broken is None
    (warning,) = found.warnings
    assert warning.startswith(
        "each boot leaves out one of nvidia-persistenced.service, site.service"
    )
    assert "systemctl cat nvidia-persistenced.service site.service" in warning
    assert "1.19.1" not in warning


OLD_CRI = cri(CRI_OK.replace("v1.7.24", "v1.6.20"))
#: What works now and is named all the same: the changes, and what the note and its next step have.
NOTED: tuple[tuple[tuple[Change, ...], str, str], ...] = (
    ((OLD_CRI, lambda w: w.cdi.clear()), "no CDI specification", "(state cdi)"),
    ((OLD_CRI, specification(PATHLESS)), "a device node has no path", "(state cdi)"),
    (
        (cri(CRI_OK), lambda w: setattr(w, "handler", False)),
        "lacks the handler nvidia, which the running process has until its next restart",
        "(state containerd)",
    ),
    (
        (lambda w: setattr(w, "on_disk", "570.99.01"),),
        "has version 570.99.01, which the next boot loads",
        "(state driver)",
    ),
    (
        (cri(CRI_OK), programs(containerd="!containerd: toml: line 7: expected ]\n")),
        "line 7: expected ]; the running process has nvidia until its next restart",
        "(state containerd)",
    ),
    (
        (lambda w: setattr(w, "nvml", replace(w.nvml, gpus=(replace(w.nvml.gpus[0], remap_pending=True), *w.nvml.gpus[1:]))),),
        "row remapping is pending until a reset; ",
        "drain the GPU and reset it",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("changes", "words", "state"), NOTED, ids=[words for _, words, _ in NOTED])
def test_what_works_until_a_restart_is_the_same_note_with_a_validation_and_without(
    changes: tuple[Change, ...], words: str, state: str, tmp_path: Path
) -> None:
    before = diagnosis(tmp_path / "a", *changes)
    after = diagnosis(tmp_path / "b", *changes, World.prove)
    for found in (before, after):
        assert found.broken is None, found.broken
        (note,) = found.warnings
        assert words in note
        assert state in note
    assert verdict(after)[0] == "all checks passed"


@pytest.mark.parametrize(
    "changes",
    [
        (cri(CRI_OK.replace("||runc", "||runc|1|/etc/cdi /var/run/cdi")), lambda w: w.cdi.clear()),
        (
            OLD_CRI,
            file(TOOLKIT, '[nvidia-container-runtime]\nmode = "cdi"\n'),
            lambda w: w.cdi.clear(),
        ),
    ],
)
def test_a_missing_specification_that_something_reads_fails(
    changes: tuple[Change, ...], tmp_path: Path
) -> None:
    assert diagnosis(tmp_path, *changes).name == "cdi-missing"


def test_a_module_file_of_another_version_fails_where_the_libraries_have_a_third(
    tmp_path: Path,
) -> None:
    other = diagnosis(
        tmp_path,
        lambda w: setattr(w, "on_disk", "570.99.01"),
        lambda w: setattr(w, "loaded", "565.1"),
    )
    assert other.name == "module-file-of-another-version"


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        (
            (lambda w: w.cdi.__setitem__("var/run/cdi/old.yaml", ["0"]),),
            "remove the file that is not kept up to date: rm /var/run/cdi/old.yaml; then apply",
        ),
        (
            (lambda w: w.cdi.update({SPEC: ["0", "all"]}),),
            "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml",
        ),
    ],
)
def test_a_next_step_names_the_specification(
    changes: tuple[Change, ...], step: str, tmp_path: Path
) -> None:
    found = diagnosis(tmp_path, *changes)
    assert found.broken is not None
    assert step in found.broken.remedy


def test_of_two_foreign_specifications_none_is_chosen_for_removal(tmp_path: Path) -> None:
    def foreign(world: World) -> None:
        world.cdi.clear()
        world.cdi |= {"etc/cdi/a.yaml": ["0", "1", "all"], "etc/cdi/b.yaml": ["0"]}

    found = diagnosis(tmp_path, foreign)
    assert found.name == "cdi-device-named-twice"
    assert found.broken is not None
    assert "rm FILE" in found.broken.remedy


def test_an_ignored_specification_is_named_once_after_a_passed_test(tmp_path: Path) -> None:
    found = diagnosis(tmp_path, specification(PATHLESS), World.prove)
    assert found.broken is None
    assert ["a device node has no path" in one for one in found.warnings] == [True]
