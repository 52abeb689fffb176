"""``gpustate policy matrix``: what it says of facts, how it ends, and one line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from commandline import Cli

from gpustate import compat

SCHEMA = Path(compat.__file__).parent / "schema/matrix.json"
BAD = ("driver=580.65.06", "gpu=8xB300", "kernel=6.8")


def test_facts_that_fit_end_well(gpustate: Cli) -> None:
    done = gpustate(
        "policy", "matrix", "check", "--set", "driver=580.65.06", "gpu=B200", "kernel=6.8"
    )
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("no rule blocks these facts\n")
    assert "\n\ncannot tell: " in done.out
    assert f"rules={len(compat.load())} blocks=0 warnings=0 " in done.out.splitlines()[-1]


def test_a_block_ends_with_5_and_says_why_what_to_do_and_who_says_so(gpustate: Cli) -> None:
    done = gpustate("policy", "matrix", "check", "--set", *BAD)
    assert (done.status, done.err) == (5, "")
    assert done.out.startswith(
        "block: driver-first-b300\n  B300 and GB300 are known to drivers from 580.82.07 on.\n"
        "  fix: use branch 580 from 580.82.07 on, or a later one\n  source: https://github.com/NVIDIA/"
    )


@pytest.mark.parametrize(
    ("facts", "module"),
    [
        (("gpu=8xH100",), "SXM5"),
        (("gpu=8xA100",), "SXM4"),
        (("gpu=8xH100", "fabric=nvswitch"), ""),
        (("gpu=8xH100-SXM5",), ""),
        (("gpu=8xL40S",), ""),
    ],
)
def test_eight_gpus_that_may_be_cards_are_a_note(
    facts: tuple[str, ...], module: str, gpustate: Cli
) -> None:
    gpu = facts[0]
    text = gpustate("policy", "matrix", "check", "--set", *facts).out
    data = json.loads(gpustate("policy", "matrix", "check", "-o", "json", "--set", *facts).out)
    assert (f"set {gpu}-{module}, for cards {gpu}-PCIe" in text) == bool(module)
    assert (f"set {gpu}-{module}," in data.get("note", "")) == bool(module)
    jsonschema.validate(data, json.loads(SCHEMA.read_text("utf-8")))
    for name in (f"{gpu}-{module}", f"{gpu}-PCIe") if module else ():
        assert "may be PCIe cards" not in gpustate("policy", "matrix", "check", "--set", name).out


def test_a_warning_blocks_when_that_is_asked_for(gpustate: Cli) -> None:
    facts = ("driver=570.211.01", "gpu=H100")
    assert gpustate("policy", "matrix", "check", "--set", *facts).status == 0
    assert gpustate("policy", "matrix", "check", "--strict", "--set", *facts).status == 5


def test_a_rule_is_overridden_with_a_reason_that_stays(gpustate: Cli) -> None:
    done = gpustate(
        "policy", "matrix", "check", "--allow", "driver-first-b300=a lab", "--set", *BAD
    )
    assert done.status == 0
    assert "allowed: driver-first-b300" in done.out
    assert "allowed because: a lab" in done.out
    assert "allowed=1" in done.out


def test_a_report_as_json_fits_its_schema(gpustate: Cli) -> None:
    done = gpustate("policy", "matrix", "check", "-o", "json", "--set", *BAD)
    assert done.status == 5
    data = json.loads(done.out)
    schema = json.loads(SCHEMA.read_text("utf-8"))
    jsonschema.validate(data, schema, cls=jsonschema.Draft202012Validator)
    assert data["blocked"] is True
    assert data["facts"]["gpu"] == "B300"
    held = {row["rule"] for row in data["results"] if row["state"] == "holds"}
    assert held == {"driver-first-b300"}
    assert next(row for row in data["results"] if row["rule"] == "mig-b300-driver") == {
        "rule": "mig-b300-driver",
        "verdict": "block",
        "state": "cannot tell",
        "missing": ["mig"],
        "would_block_if": {"fact": "mig", "value": "yes"},
    }


def test_all_rules_are_listed(gpustate: Cli) -> None:
    data = json.loads(gpustate("policy", "matrix", "list", "-o", "json").out)
    assert len(data["rules"]) == len(compat.load()) >= 200
    assert {"id", "when", "verdict", "because", "fix", "source", "tests"} <= set(data["rules"][0])
    one = gpustate("policy", "matrix", "list", "secure-boot")
    assert "secure-boot-signer" in one.out
    assert "driver-first-b300" not in one.out
    stale = json.loads(gpustate("policy", "matrix", "list", "--stale", "0", "-o", "json").out)[
        "rules"
    ]
    assert "proprietary-modules-gh200" in [rule["id"] for rule in stale], "read in August 2026"
    assert (
        json.loads(gpustate("policy", "matrix", "list", "--stale", "9999", "-o", "json").out)[
            "rules"
        ]
        == []
    )


def test_why_shows_condition_source_and_tests_and_what_it_saw(gpustate: Cli) -> None:
    done = gpustate(
        "policy", "matrix", "why", "driver-first-b300", "--set", "driver=580", "gpu=B300"
    )
    assert (done.status, done.err) == (0, "")
    for line in (
        "    driver: {range: <580.82.07}",
        "  negative test (does not hold): {gpu: B300, driver: 580.82.07}",
        "  here: cannot tell",
        "    driver: 580.*",
    ):
        assert line in done.out.splitlines()
    data = json.loads(gpustate("policy", "matrix", "why", "driver-first-b300", "-o", "json").out)
    assert data["rule"]["when"]["driver"] == {"range": "<580.82.07"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check",), "no facts; give some"),
        (("check", "--set", "driver"), "'driver' is not of the form FACT=VALUE"),
        (("check", "--set", "divr=580"), "unknown fact 'divr'; did you mean driver"),
        (("check", "--set", "driver=abc"), "driver is 'abc', wanted a version"),
        (("check", "--set", "driver=1.2", "version=3"), "unknown fact 'version'"),
        (("check", "--set", "gpu=B200", "gpus=H100"), "gpu is set twice"),
        (("check", "--allow", "x=y", "--set", "gpu=T4"), "allow: unknown rule 'x'"),
        (("why", "driver-first-b30"), "unknown rule 'driver-first-b30'; did you mean"),
        (("list", "drivr-gpu"), "did you mean driver-gpu"),
        (("list", "--rules", "nowhere"), "nowhere: is not a folder"),
        (("list", "x\x1b[31m"), "no theme"),
    ],
)
def test_whatever_is_wrong_is_one_line(gpustate: Cli, words: tuple[str, ...], said: str) -> None:
    done = gpustate("policy", "matrix", *words)
    assert done.status == 1
    assert done.out == ""
    assert said in done.err
    assert done.err.count("\n") == 1
    assert "\x1b" not in done.err


USES_THE_MATRIX = (
    ("plan", "p.yaml", "-i", "127.0.0.1,"),
    ("apply", "p.yaml", "-i", "127.0.0.1,", "-y"),
    ("apply", "p.yaml", "-i", "127.0.0.1,"),
    ("remove", "p.yaml", "-i", "127.0.0.1,", "-y"),
    ("drift", "p.yaml", "-i", "127.0.0.1,"),
    ("validate", "validator", "-i", "127.0.0.1,"),
    ("image", "bake", "p.yaml", "--root", "image", "--dry-run"),
    ("driver", "solve", "p.yaml", "-i", "127.0.0.1,"),
    ("driver", "outdated", "p.yaml", "-i", "127.0.0.1,"),
    ("policy", "matrix", "list"),
)


@pytest.mark.parametrize("words", USES_THE_MATRIX, ids=lambda words: " ".join(words))
def test_rules_that_are_not_the_pinned_ones_stop_a_verb_before_any_node(
    gpustate: Cli, project: Path, words: tuple[str, ...]
) -> None:
    (project / "rules").mkdir()
    (project / "rules" / "SHA256SUMS").write_text("")
    (project / "p.yaml").write_text("format: gpustate.policy/1\nstates:\n  driver:\n")
    done = gpustate(*words, GPUSTATE_COMPAT=f"rules#sha256={'0' * 64}")
    assert done.status == 5, done
    assert "is pinned" in done.err
    done = gpustate(*words, GPUSTATE_COMPAT="nosuchdir")
    assert done.status == 1
    assert "nosuchdir: is not a folder" in done.err


def test_a_verb_that_does_not_use_the_matrix_goes_on_with_rules_that_cannot_be_read(
    gpustate: Cli, project: Path
) -> None:
    (project / "p.yaml").write_text("format: gpustate.policy/1\nstates:\n  driver:\n")
    for words in (
        ("policy", "convert", "p.yaml", "--to", "python"),
        ("policy", "resolve", "n1", "p.yaml", "-i", "n1,"),
    ):
        assert gpustate(*words, GPUSTATE_COMPAT="nosuchdir").status == 0, words


def test_a_malformed_pin_is_called_one(gpustate: Cli) -> None:
    done = gpustate("policy", "matrix", "list", "--rules", "rules#sha256=0000")
    assert done.status == 1
    assert "'rules#sha256=0000' is a malformed pin; write DIR#sha256=SUM" in done.err


@pytest.mark.parametrize(
    "words",
    [
        ("policy", "convert", "p.yaml", "--to", "python"),
        ("policy", "resolve", "n1", "p.yaml", "-i", "n1,"),
        ("plan", "p.yaml", "-i", "127.0.0.1,"),
    ],
)
def test_an_exception_from_a_rule_that_there_is_not_is_refused_by_every_verb(
    gpustate: Cli, project: Path, words: tuple[str, ...]
) -> None:
    begin = "format: gpustate.policy/1\nstates:\n  nouveau:\n"
    (project / "p.yaml").write_text(f"{begin}allow:\n  driver-first-b30: we try\n")
    done = gpustate(*words)
    assert done.status == 1
    assert "p.yaml:5: allow: unknown rule 'driver-first-b30'; did you mean" in done.err
    (project / "p.yaml").write_text(f"{begin}groups:\n  g:\n    allow: {{nosuchrule: x}}\n")
    done = gpustate(*words)
    assert done.status == 1
    assert "p.yaml:6: allow: unknown rule 'nosuchrule'" in done.err


def test_an_exception_in_the_inventory_is_held_against_the_rules_too(
    gpustate: Cli, project: Path
) -> None:
    (project / "p.yaml").write_text("format: gpustate.policy/1\nstates:\n  nouveau:\n")
    (project / "h.yml").write_text(
        "all:\n  hosts:\n    n1:\n      ansible_host: 127.0.0.1\n"
        "      gpustate:\n        allow:\n          driver-first-b30: x\n"
    )
    for words in (("policy", "resolve", "n1"), ("plan",)):
        done = gpustate(*words, "p.yaml", "-i", "h.yml")
        assert done.status == 1
        assert "h.yml:7: allow: unknown rule 'driver-first-b30'" in done.err, done


@pytest.mark.parametrize(
    ("given", "line", "fact", "value"),
    [
        (
            ("cuda=13.0", "driver=570.86.15"),
            "1 rule would block if cuda_compat=no: cuda-13-driver",
            "cuda_compat",
            "no",
        ),
        (
            ("fabric=nvswitch",),
            "1 rule would block if fabric_manager=none: fabric-manager-missing",
            "fabric_manager",
            "none",
        ),
        (
            ("gds=yes", "module_type=proprietary", "driver=570.86.15", "gpu=H100"),
            "1 rule would block with some nvidia_fs, such as 2.26.6: gds-open-modules",
            "nvidia_fs",
            "2.26.6",
        ),
    ],
)
def test_a_rule_that_would_block_by_one_fact_more_is_named_with_it(
    gpustate: Cli, given: tuple[str, ...], line: str, fact: str, value: str
) -> None:
    done = gpustate("policy", "matrix", "check", "--set", *given)
    assert done.status == 0, "what cannot be told blocks nothing"
    assert line in done.out.splitlines()
    rule = line.rpartition(" ")[2]
    data = json.loads(gpustate("policy", "matrix", "check", "--set", *given, "-o", "json").out)
    jsonschema.validate(data, json.loads(SCHEMA.read_text()))
    found = next(one for one in data["results"] if one["rule"] == rule)
    assert found["would_block_if"] == {"fact": fact, "value": value}
    told = gpustate("policy", "matrix", "check", "--set", *given, f"{fact}={value}")
    assert told.status == 5, "it is so with that value"
    assert f"block: {rule}" in told.out


def test_a_rule_about_nothing_that_was_given_is_not_named(gpustate: Cli) -> None:
    done = gpustate("policy", "matrix", "check", "--set", "cuda=13.0", "driver=570.86.15")
    assert "dra-gates-dynamicmig-mpssupport" not in done.out
    assert "would block depending on more of driver: dra-gates-dns-names-driver" in (
        gpustate("policy", "matrix", "check", "--set", "compute_domains=yes", "driver=570").out
    )
