"""What apt 2.6 and 3.0 and dpkg 1.21 and 1.22 print when something is wrong, as seen on nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpustate.formats import package_errors


@pytest.mark.parametrize(
    ("output", "line", "move"),
    [
        (
            "Err:1 http://x  libcuda1\n  404  File not found\n"
            "E: Failed to fetch http://x/libcuda1.deb  404  File not found [IP: 10.0.0.1 80]\n"
            "E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?\n",
            "E: Failed to fetch http://x/libcuda1.deb  404  File not found [IP: 10.0.0.1 80]",
            "update the mirror",
        ),
        (
            "Err:1 http://x  InRelease\n  401  Unauthorized [IP: 10.0.0.1 80]\n"
            "E: Failed to fetch http://x/InRelease  401  Unauthorized [IP: 10.0.0.1 80]\n"
            "E: The repository 'http://x  InRelease' is not signed.\n",
            "E: Failed to fetch http://x/InRelease  401  Unauthorized [IP: 10.0.0.1 80]",
            "check username and password",
        ),
        (
            "Errors during downloading metadata for repository 'x':\n"
            "  - Status code: 401 for http://x/repodata/repomd.xml (IP: 10.0.0.1)\n",
            "Errors during downloading metadata for repository 'x': "
            "- Status code: 401 for http://x/repodata/repomd.xml (IP: 10.0.0.1)",
            "check username and password",
        ),
        (
            "E: Failed to fetch http://x/Packages.gz  Hash Sum mismatch\n   Hashes of expected file:\n",
            "E: Failed to fetch http://x/Packages.gz  Hash Sum mismatch",
            "being updated or is corrupt",
        ),
        (
            "dpkg: error processing archive /var/cache/apt/archives/a.deb (--unpack):\n"
            " trying to overwrite '/usr/bin/nvidia-smi', which is also in package site-tools 1.0\n"
            "E: Sub-process /usr/bin/dpkg returned an error code (1)\n",
            "dpkg: error processing archive /var/cache/apt/archives/a.deb (--unpack): "
            "trying to overwrite '/usr/bin/nvidia-smi', which is also in package site-tools 1.0",
            "remove that package",
        ),
        (
            "The following packages have unmet dependencies:\n"
            " nvidia-driver-cuda : Depends: libcuda1 (= 580.178.04-1) but it is not going to be installed\n"
            "                      Depends: libnvidia-ptxjitcompiler1 (= 580.178.04-1) but it is not installable\n"
            "E: Unable to correct problems, you have held broken packages.\n",
            "nvidia-driver-cuda : Depends: libnvidia-ptxjitcompiler1 (= 580.178.04-1) but it is not installable",
            "a pin, a hold or a missing package",
        ),
        (
            "error: /usr/src/nvidia-580.1/Makefile is not as package nvidia-kernel-open-dkms brought it\n"
            "DKMS build error for kernel 6.1.0: nv.c:1: error: x (whole log: /y)\n",
            "error: /usr/src/nvidia-580.1/Makefile is not as package nvidia-kernel-open-dkms brought it",
            "reinstall that package",
        ),
        (
            "DKMS build error for kernel 6.1.0: nv.c:1: error: x (whole log: /y)\n"
            "E: Sub-process /usr/bin/dpkg returned an error code (1)\n",
            "DKMS build error for kernel 6.1.0: nv.c:1: error: x (whole log: /y)",
            "supports this kernel",
        ),
        (
            "E: Problem with MergeList /var/lib/apt/lists/x_Packages\n",
            "E: Problem with MergeList /var/lib/apt/lists/x_Packages",
            "rm '/var/lib/apt/lists/x_Packages'",
        ),
        (
            "W: GPG error: http://x InRelease: The following signatures couldn't be verified because the "
            "public key is not available: NO_PUBKEY 0123\nE: The repository 'http://x InRelease' is not signed.\n",
            "E: The repository 'http://x InRelease' is not signed.",
            "key and fingerprint",
        ),
        (
            "Job for docker.service failed because the control process exited with error code.\n"
            "docker.service did not come up: unable to configure the Docker daemon with file /etc/docker/daemon.json\n",
            "docker.service did not come up: unable to configure the Docker daemon with file /etc/docker/daemon.json",
            "fix the service (see journalctl -u docker.service on the node)",
        ),
        (
            "Reading package lists...\nBuilding dependency tree...\nReading state information...E: "
            "The package acme-agent needs to be reinstalled, but I can't find an archive for it.\n",
            "E: The package acme-agent needs to be reinstalled, but I can't find an archive for it.",
            "half-installed, and no repository of the node has it: run dpkg --remove --force-remove-reinstreq acme-agent on",
        ),
        (
            "W: Failed to fetch http://m/x/InRelease  Could not connect to m:80 (10.99.0.1), connection timed out\n"
            "E: The repository 'http://m/x ./ Release' does not have a Release file.\n",
            "W: Failed to fetch http://m/x/InRelease  Could not connect to m:80 (10.99.0.1), connection timed out",
            "check that the node can reach the repository",
        ),
        (
            "Job for x.service failed because a timeout was exceeded.\nx.service does not run: \nStarting x\n",
            "Job for x.service failed because a timeout was exceeded.",
            "see journalctl -u x.service",
        ),
    ],
)
def test_the_line_that_names_the_trouble_is_found_with_its_next_move(
    output: str, line: str, move: str
) -> None:
    found = package_errors.find_error(output)
    assert found is not None
    assert found[0] == line
    assert move in found[1]


@pytest.mark.parametrize("output", ["", "all is well\n", "containerd did not come up\n"])
def test_what_is_not_known_is_left_to_others(output: str) -> None:
    assert package_errors.find_error(output) is None


def test_who_needs_a_package_that_is_to_leave_is_told_first() -> None:
    said = "E: Error, pkgProblemResolver::Resolve generated breaks\nerror: it is needed by x; remove that first, or with it\n"
    assert package_errors.find_error(said) == (
        "error: it is needed by x; remove that first, or with it",
        "",
    )


REPORTS: list[dict[str, str]] = yaml.load(
    (Path(__file__).parents[2] / "data/package-errors.yaml").read_text(), yaml.CSafeLoader
)


@pytest.mark.parametrize("report", REPORTS, ids=lambda one: f"{one['manager']}-{one['source']}")
def test_the_telling_line_of_a_public_report_is_shown_with_what_helps(
    report: dict[str, str],
) -> None:
    warned = f"Detection of Platform Module failed: No valid Platform ID detected\n{report['text']}"
    found = package_errors.find_error(warned)
    assert found is not None
    assert found[0] == report["line"]
    assert report["move"] in found[1]


def test_every_manager_has_reports_of_what_goes_wrong_with_it() -> None:
    kinds = {"unmet", "conflict of files", "signature", "lock", "no room"}
    for manager, lacking in (("apt", set[str]()), ("dnf", set[str]()), ("zypper", {"no room"})):
        there = {one["kind"] for one in REPORTS if one["manager"] == manager}
        assert kinds - there == lacking
    assert {"404", "clock", "interrupted", "held"} <= {one["kind"] for one in REPORTS}


@pytest.mark.parametrize(
    "line",
    [
        # dpkg 1.22, lib/dpkg/file.c; apt 2.6, apt-pkg/deb/debsystem.cc
        "dpkg: error: dpkg frontend lock was locked by another process with pid 1234",
        "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?",
        "E: Unable to lock the administration directory (/var/lib/dpkg/), is another process using it?",
    ],
)
def test_a_lock_of_dpkg_is_waited_for(line: str) -> None:
    assert package_errors.find_error(line) == (
        line,
        "wait until that process ends, or stop it, then apply again",
    )
