"""Packages, units and command lines of the host engine and of the exporter."""

from __future__ import annotations

import http.server
import subprocess
import threading

import pytest

from gpustate.formats import dcgm
from gpustate.formats.dcgm import packages, scraping, services

CORE, CUDA12, CUDA13 = packages.CORE, f"{packages.PREFIX}-cuda12", f"{packages.PREFIX}-cuda13"


@pytest.mark.parametrize(
    ("driver", "major"),
    [
        ("595.91.07", 13),
        ("580.65.06", 13),
        ("570.211.01", 12),
        ("525.1", 12),
        ("470.1", 11),
        ("", None),
    ],
)
def test_the_cuda_major_goes_by_the_branch(driver: str, major: int | None) -> None:
    assert packages.cuda_major(driver) == major


@pytest.mark.parametrize(
    ("installed", "offered", "version", "choice", "problem"),
    [
        ({}, "4.5.3 4.6.0", None, "1:4.6.0-1", ""),
        ({}, "4.5.3 4.6.0", "4.5.3", "1:4.5.3-1", ""),
        ({CORE: "1:4.5.3-1"}, "4.5.3 4.6.0", None, "1:4.5.3-1", ""),
        ({CORE: "1:4.5.3-1"}, "4.6.0", None, "1:4.6.0-1", ""),
        ({CORE: "1:4.4.0-1", CUDA13: "1:4.4.0-1"}, "", None, "1:4.4.0-1", ""),
        ({}, "4.6.0", "4.7.0", "", f"{CORE} 4.7.0"),
        ({}, "", None, "", CORE),
        ({CORE: "1:4.4.0-1"}, "", None, "", CUDA13),
    ],
)
def test_one_version_of_all_packages_is_chosen(
    installed: dict[str, str], offered: str, version: str | None, choice: str, problem: str
) -> None:
    rows = [(name, f"1:{one}-1") for one in offered.split() for name in (CORE, CUDA13)]
    found = packages.choose((CORE, CUDA13), installed, rows, version)
    assert (found.version, found.problem) == (choice, problem)


def test_a_package_of_another_cuda_major_is_known() -> None:
    assert packages.of_other_major(CUDA12, 13)
    assert not packages.of_other_major(CUDA13, 13)
    assert not packages.of_other_major(CORE, 13)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("0: 0100007F:15B3 00000000:0000 0A 00000000:00000000", ("127.0.0.1",)),
        ("0: 00000000:15B3 00000000:0000 0A 00000000:00000000", ("ALL",)),
        ("0: 00000000000000000000000000000000:15B3 0:0 0A x", ("ALL",)),
        ("0: 0000000000000000FFFF00000100007F:15B3 0:0 0A x", ("127.0.0.1",)),
        ("0: 0100007F:15B3 0100007F:9999 01 00000000:00000000", ()),
        ("0: 0100007F:15B4 00000000:0000 0A 00000000:00000000", ()),
        ("0: xyz:15B3 00000000:0000 0A x", ("xyz",)),
        ("", ()),
        ("sl local_address rem_address st", ()),
    ],
)
def test_addresses_a_port_is_bound_to_are_read(row: str, found: tuple[str, ...]) -> None:
    assert services.listening(row + "\n", 5555) == found


def test_only_what_differs_from_the_defaults_is_an_argument() -> None:
    assert services.engine_words("127.0.0.1", 5555) == ("-n", "--service-account", "nvidia-dcgm")
    assert services.engine_words("ALL", 5566)[3:] == ("-b", "ALL", "-p", "5566")
    assert "ExecStart" not in services.engine_drop_in("127.0.0.1", 5555)
    assert "ExecStart=\nExecStart=/usr/bin/nv-hostengine -n" in services.engine_drop_in("ALL", 5555)
    assert "After=" in services.engine_drop_in("127.0.0.1", 5555)


def test_arguments_are_found_behind_an_interpreter_too() -> None:
    line = "/usr/lib/python -SB /usr/bin/dcgm-exporter -f x -a :9400 "
    assert services.words_after(line, "dcgm-exporter") == ("-f", "x", "-a", ":9400")
    assert services.words_after("/usr/bin/other -f x", "dcgm-exporter") is None


def test_comments_and_blanks_do_not_change_what_an_exporter_makes_of_a_file() -> None:
    text = "DCGM_FI_DEV_GPU_TEMP, gauge, t\n"
    one, two = dcgm.read(text, "a"), dcgm.read("# more\n\n" + text.replace(", ", ",  "), "b")
    assert services.digest(one) == services.digest(two)
    other = dcgm.read(text.replace("gauge", "counter"), "c")
    assert services.digest(one) != services.digest(other)


def test_a_whole_unit_is_the_drop_in_with_a_head_and_an_end() -> None:
    words = services.exporter_words("/c.csv", ":9400", 30000, "localhost:5555", "/jobs")
    unit = services.exporter_unit(words, "m", local_engine=True)
    assert "Description=" in unit
    assert unit.rstrip().endswith("WantedBy=multi-user.target")
    assert "-r localhost:5555 --hpc-job-mapping-dir /jobs" in unit
    remote = services.exporter_drop_in(words, "m", local_engine=False)
    assert services.ENGINE_UNIT not in remote
    assert "Description" not in remote


def test_the_fragment_that_asks_an_exporter_gives_its_answer_or_fails() -> None:
    class Answering(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(b"DCGM_FI_DEV_GPU_TEMP 1\n" * 20000)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    def query(path: str, port: int) -> subprocess.CompletedProcess[str]:
        text = scraping.script("127.0.0.1", port, path)
        return subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_port
        good, bad = query("/metrics", port), query("/other", port)
        server.shutdown()
        thread.join()
    assert good.stdout == "DCGM_FI_DEV_GPU_TEMP 1\n" * 20000
    assert (bad.returncode, bad.stdout) == (22, "")
    assert query("/metrics", port).returncode != 0
