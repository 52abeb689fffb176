"""The table of Xids, and their lines in the kernel log."""

from __future__ import annotations

import re

import pytest
import yaml

from gpustate.formats import xids
from gpustate.formats.dcgm import shipped
from gpustate.formats.xids import Xid

LOADED = "[   12.0] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06"


def test_every_row_has_a_name_a_known_action_and_a_source() -> None:
    for number, row in xids.TABLE.items():
        assert row.number == number
        assert re.fullmatch("[A-Z][A-Z0-9_]+", row.name)
        assert row.action in xids.ACTIONS
        assert row.source in xids.SOURCES
        assert (row.action == "") <= (row.source != "catalog")


@pytest.mark.parametrize(
    ("number", "action"),
    [
        (13, "RESTART_APP"),
        (43, "IGNORE"),
        (64, "RESET_GPU"),
        (79, "RESTART_BM"),
        (119, "RESET_GPU"),
        (175, "RESET_GPU"),
        (1, "CONTACT_SUPPORT"),
    ],
)
def test_actions_are_nvidias(number: int, action: str) -> None:
    assert xids.find_row(number).action == action


def test_a_number_beyond_the_table_is_nobodys() -> None:
    assert xids.find_row(4000).action == ""
    assert {xids.find_row(number).name for number in (173, 174, 176, 185)} == {
        "C2C_FATAL_LINK_FAILURE",
        "ROBUST_CHANNEL_RESETCHANNEL_KILL_PROCESS_SILENT",
        "PCIE_CORRECTABLE_ERROR_FAULT",
        "SPARING_EVENT",
    }


def test_the_alert_rules_ask_for_a_reset_where_the_catalog_does() -> None:
    rules = {
        rule["alert"]: rule["expr"]
        for group in yaml.safe_load(shipped.rules())["groups"]
        for rule in group["rules"]
    }
    told = re.findall(r"\d+", rules["GpuXidReset"].partition("{")[2].partition("}")[0])
    reset = {n for n, row in xids.TABLE.items() if row.action == "RESET_GPU"}
    assert reset - {int(number) for number in told} == {64}, "64 has a rule of its own"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "[  100.000001] gpu1 kernel: NVRM: Xid (PCI:0000:1B:00): 79, pid=12, GPU has fallen off the bus.",
            Xid("0000:1b:00", 79, 1, 100.000001, "pid=12, GPU has fallen off the bus."),
        ),
        (
            "[    5.5] NVRM: Xid (PCI:0000:07:00 GPU-I:05): 94, pid=1, Contained",
            Xid("0000:07:00", 94, 1, 5.5, "pid=1, Contained"),
        ),
        ("[    5] NVRM: Xid (0000:03:00): 13, x", Xid("0000:03:00", 13, 1, 5.0, "x")),
        ("[    5] NVRM: Xid (PCI:00000000:03:00): 13", Xid("0000:03:00", 13, 1, 5.0, "")),
        ("[    5] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, x", None),
        ("NVRM: Xid (PCI:0000:03:00): 13, without a time", None),
        ("[    5] NVRM: Xid (PCI:zz): 13", None),
    ],
)
def test_a_line_of_the_log_is_read(line: str, found: Xid | None) -> None:
    assert xids.parse([line], {}) == (() if found is None else (found,))


def test_lines_are_counted_and_those_before_the_module_was_loaded_are_history() -> None:
    one = "[ {}] NVRM: Xid (PCI:0000:1b:00): 95, x"
    lines = [one.format(5), LOADED, one.format(20), one.format(21)]
    assert xids.parse(lines, {}) == (Xid("0000:1b:00", 95, 2, 21.0, "x"),)


def test_lines_before_the_last_reset_of_their_gpu_are_history() -> None:
    uuid = "GPU-455d8f70-2051-db6c-0430-ffc457bff834"
    reset = f"[   30.5] gpu1 nvsentinel-gpu-reset[7]: GPU reset executed: {uuid}"
    xid = "[ {}] gpu1 kernel: NVRM: Xid (PCI:{}:00): {}, x"
    switch = "[   21] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30"
    lines = [xid.format(20, "0000:1b", 119), xid.format(21, "0000:1c", 119), switch]
    lines += [xid.format(22, "0000:1b", 145) + " Fatal XC1"]
    addresses = {uuid: "0000:1b:00"}
    left = [("0000:05:00", 20034), ("0000:1b:00", 145), ("0000:1c:00", 119)]
    for line in (reset, f"{reset}, success: true"):
        log = xids.parse([*lines, line], addresses)
        assert [(one.pci, one.number) for one in log] == left
    assert len(xids.parse([*lines, f"{reset}, success: false"], addresses)) == 4
    (*_, last) = xids.parse([*lines[:1], reset, xid.format(40, "0000:1b", 119)], addresses)
    assert (last.count, last.last_s) == (1, 40.0)


def test_severity_of_nvlink_and_nvswitch_lines_is_read() -> None:
    nvlink = "[ 9001.1] NVRM: Xid (PCI:0000:43:00): {}, RLW_RXPIPE {} XC1 i0 Link 13 (0x0409a0c2 0x00000008)"
    switch = "[ 1701.3] nvidia-nvswitch2: SXid (PCI:0000:07:00.0): {}, {} Link 30 LTSSM Fault Up"
    lines = [
        *(
            nvlink.format(145, "Fatal"),
            nvlink.format(145, "Nonfatal"),
            nvlink.format(149, "Nonfatal"),
        ),
        *(switch.format(20034, "Fatal,"), switch.format(20034, "Severity 1 Engine instance 30")),
        switch.format(12028, "Non-fatal,"),
    ]
    found = [(one.pci, one.number, one.severity, one.action) for one in xids.parse(lines, {})]
    workflow = "WORKFLOW_NVLINK5_ERR"
    assert found == [
        ("0000:07:00", 20034, "Fatal", "RESET_FABRIC"),
        ("0000:43:00", 145, "Fatal", "RESET_FABRIC"),
        ("0000:43:00", 145, "Nonfatal", workflow),
        ("0000:43:00", 149, "Nonfatal", workflow),
    ]
    assert (
        xids.parse(lines, {})[1].name
        == "Xid 145 NVLINK_RLW_ERROR (RLW_RXPIPE Fatal XC1 i0 Link 13)"
    )
