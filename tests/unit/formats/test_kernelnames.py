"""Kernel releases of every rpm distribution, and the packages that belong to them."""

from __future__ import annotations

import pytest

from gpustate.formats import driverschemes, kernelnames

RELEASES = [
    # manager, release, name of the headers, version on offer
    ("dnf", "4.18.0-553.el8_10.x86_64", "kernel-devel", "4.18.0-553.el8_10"),
    ("dnf", "5.14.0-503.11.1.el9_5.x86_64", "kernel-devel", "5.14.0-503.11.1.el9_5"),
    ("dnf", "6.12.0-211.51.1.el10_2.aarch64", "kernel-devel", "6.12.0-211.51.1.el10_2"),
    ("dnf", "6.12.0-211.51.1.el10_2.aarch64+64k", "kernel-64k-devel", "6.12.0-211.51.1.el10_2"),
    ("dnf", "5.14.0-503.11.1.el9_5.x86_64+rt", "kernel-rt-devel", "5.14.0-503.11.1.el9_5"),
    ("dnf", "6.1.119-129.201.amzn2023.x86_64", "kernel-devel", "6.1.119-129.201.amzn2023"),
    ("dnf", "6.12.20-23.97.amzn2023.aarch64", "kernel6.12-devel", "6.12.20-23.97.amzn2023"),
    *(
        ("dnf", f"{evr}.{machine}", f"kernel-{name}-devel", evr)
        for evr, machine, name in (
            ("5.15.0-300.163.18.el9uek", "x86_64", "uek"),
            ("6.12.0-100.28.2.2.el9uek", "aarch64", "uek"),
            ("5.15.0-300.163.18.el9uek", "aarch64+64k", "uek64k"),
            ("6.12.0-100.28.2.el10uek", "x86_64", "uek"),
        )
    ),
    ("zypper", "6.4.0-150600.23.65-default", "kernel-default-devel", "6.4.0-150600.23.65.1"),
    ("zypper", "6.4.0-150600.8.40-azure", "kernel-azure-devel", "6.4.0-150600.8.40.1"),
    ("zypper", "6.12.0-160000.5-64kb", "kernel-64kb-devel", "6.12.0-160000.5.1"),
]


@pytest.mark.parametrize(("manager", "release", "name", "version"), RELEASES)
def test_the_headers_of_a_kernel_are_those_of_its_own_build(
    manager: str, release: str, name: str, version: str
) -> None:
    others = (f"{version.partition('-')[0]}-1.1", "9.9.9-1")
    assert kernelnames.headers(manager, release, {name: (*others, version)}) == (name, version)
    assert kernelnames.headers(manager, release, {name: others}) is None
    # What is offered with an epoch is the same build.
    assert kernelnames.headers(manager, release, {name: (f"1:{version}",)}) is not None


def test_a_kernel_whose_number_goes_on_is_another_one() -> None:
    offers = {"kernel-default-devel": ("6.4.0-150600.23.655.1",)}
    assert kernelnames.headers("zypper", "6.4.0-150600.23.65-default", offers) is None


@pytest.mark.parametrize(
    ("os_id", "kernel", "version", "kind", "name"),
    [
        (
            "rocky",
            "5.14.0-503.11.1.el9_5.x86_64",
            "580.65.06",
            "proprietary",
            "kmod-nvidia-580.65.06-5.14.0-503.11.1",
        ),
        (
            "rhel",
            "6.12.0-211.51.1.el10_2.aarch64+64k",
            "580.178.04",
            "open",
            "kmod-64k-nvidia-open-580.178.04-6.12.0-211.51.1",
        ),
        (
            "sles",
            "6.4.0-150600.23.65-default",
            "580.126.09",
            "open",
            "nvidia-open-driver-G07-signed-cuda-kmp-default",
        ),
        (
            "ubuntu",
            "6.8.0-31-generic",
            "580.65.06",
            "open",
            "linux-modules-nvidia-580-server-open-6.8.0-31-generic",
        ),
    ],
)
def test_built_modules_are_called_after_version_type_and_kernel(
    os_id: str, kernel: str, version: str, kind: str, name: str
) -> None:
    first, *others = driverschemes.of(os_id)[0].built_for(kernel, version, kind)
    assert first == name
    # SUSE's other kind of signed modules, and those of AlmaLinux and CIQ.
    if "-kmp-" in name:
        assert others == [name.replace("-cuda-kmp", "-kmp")]
    else:
        stem = "kmod-64k" if "64k" in kernel else "kmod"
        theirs = [f"{stem}-nvidia-open", f"{stem}-nvidia-dc-open-latest"]
        assert others == (theirs if os_id == "rhel" and kind == "open" else [])


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("6.12.20-23.97.amzn2023.aarch64", "kernel6.12-modules-extra"),
        ("6.12.0-211.51.1.el10_2.x86_64", "kernel-modules-extra"),
        ("6.12.0-211.51.1.el10_2.aarch64+64k", "kernel-64k-modules-extra"),
        ("6.12.0-100.28.2.2.el9uek.x86_64", "kernel-uek-modules-extra"),
    ],
)
def test_further_modules_are_those_of_the_kernel_s_own_build(release: str, name: str) -> None:
    full = kernelnames.parts("dnf", release)["e"]
    assert kernelnames.modules(release, {name: ("9-1", full)}) == {name: full}
    assert kernelnames.modules(release, {name: ("9-1",)}) == {}
