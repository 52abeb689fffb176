"""The data: every rule does what its tests say, has a source, and accuses no set that is known to be good."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from datetime import datetime
from pathlib import Path

import jsonschema
import pytest
import yaml

from gpustate import compat
from gpustate.compat.facts import FACTS, MODELS
from gpustate.compat.rules import ReviewVerdict, Verdict
from gpustate.formats import gpu_models

TOP = Path(compat.__file__).parent
RULES = compat.load()


def test_a_rule_holds_for_its_positive_test_and_not_for_its_negative_one() -> None:
    for rule in RULES:
        assert rule.when.holds(rule.positive) is True, rule.id
        assert rule.when.holds(rule.negative) is False, rule.id


def test_a_rule_says_who_says_so_why_and_what_to_do() -> None:
    for rule in RULES:
        assert rule.source.address.startswith("https://"), rule.id
        assert rule.source.retrieved >= "2026-08-21", rule.id
        assert re.match(r"[A-Za-z0-9].*[.]$", rule.because), f"{rule.id}: a sentence"
        assert len(rule.because) <= 200, rule.id
        assert rule.fix, rule.id
        assert not rule.fix.endswith("."), f"{rule.id}: the next move, as it follows a message"


def test_every_rule_was_held_against_its_source_a_second_time() -> None:
    assert [rule.id for rule in RULES if rule.review is None] == [], "add review"
    read = {rule.id: (rule.review, rule.source) for rule in RULES if rule.review is not None}
    assert [name for name, (review, source) in read.items() if review.date < source.retrieved] == []
    assert [name for name, (review, _) in read.items() if len(review.note) > 200] == []
    alone = {name for name, (review, _) in read.items() if review.reader == "author"}
    pending = {name for name, (one, _) in read.items() if one.verdict is ReviewVerdict.PENDING}
    assert alone == pending


def test_support_that_a_rule_promises_had_not_ended_when_the_newest_source_was_read() -> None:
    read = max(rule.source.retrieved for rule in RULES)
    for rule in RULES:
        for ends in re.findall(r"(?:until|by) ([A-Z][a-z]+ 20[0-9]{2})", rule.because + rule.fix):
            assert datetime.strptime(ends, "%B %Y").strftime("%Y-%m") >= read[:7], rule.id
        for ends in re.findall(r"until (20[0-9-]{8})", rule.because + rule.fix):
            assert ends >= read, rule.id


#: Facts that nothing gives to a plan, without which a blocking rule cannot decide there, and why.
_OF_CLUSTER = "an object or a version of the cluster, which a plan of nodes does not ask"
_JUDGED = "the state judges it itself, with its own refusal and the step that fixes it"
_OF_VMS = "what runs in virtual machines, or beside them on their hosts"
_REASONS = {
    **dict.fromkeys(
        (
            *(
                "cluster_policy",
                "device_list_strategy",
                "device_plugin",
                "gpu_cluster",
                "gpu_operator",
            ),
            *(
                "kubernetes",
                "kubernetes_flavour",
                "mig_manager",
                "network_operator",
                "user_namespaces",
            ),
        ),
        _OF_CLUSTER,
    ),
    **dict.fromkeys(
        (
            # Of containerd: by its dump. Of driver: one version, headers, the key of secure-boot. Of kata: a loaded driver.
            *("containerd_config", "containerd_dropin", "containerd_imports"),
            *(
                "driver_loaded",
                "userland",
                "kernel_headers",
                "signer_enrolled",
                "host_driver",
                "kata",
            ),
        ),
        _JUDGED,
    ),
    **dict.fromkeys(
        ("gpus_per_vm", "kubevirt", "openshift_virtualization", "vgpu_device_manager", "vgpu_mdev"),
        _OF_VMS,
    ),
    "ofed_after_driver": "the order of two installations in the past",
}


def test_every_blocking_rule_decides_in_plans_or_depends_on_what_no_plan_knows() -> None:
    blocks = [rule for rule in RULES if rule.verdict is Verdict.BLOCK]
    by_hand = {name for name, fact in FACTS.items() if fact.where == "given by hand"}
    silent: dict[str, set[str]] = {}
    for rule in blocks:
        known = {k: v for k, v in rule.positive.items() if k not in by_hand}
        if rule.when.holds(known) is not True:
            silent[rule.id] = by_hand & set(rule.when.names())
    assert all(silent.values())
    assert {name for names in silent.values() for name in names} == set(_REASONS)
    assert len(silent) <= 37, sorted(silent)


def test_an_index_that_changes_every_day_is_named_as_such() -> None:
    indexes = {rule.id for rule in RULES if "//packages." in rule.source.address}
    assert indexes == {rule.id for rule in RULES if rule.source.live}
    assert len(indexes) == 5


def test_few_rules_have_been_read_by_their_author_alone() -> None:
    verdicts = Counter(rule.review.verdict for rule in RULES if rule.review)
    assert verdicts[ReviewVerdict.PENDING] <= 0.06 * len(RULES)
    assert verdicts[ReviewVerdict.CONFIRMED] + verdicts[ReviewVerdict.CORRECTED] >= 300


def test_there_are_two_hundred_rules_and_more() -> None:
    assert len(RULES) >= 200
    assert {rule.verdict for rule in RULES} == set(Verdict)
    assert len({rule.because for rule in RULES}) >= 0.95 * len(RULES)


def test_every_fact_is_asked_for_by_a_rule_or_follows() -> None:
    asked = {name for rule in RULES for name in rule.when.names()}
    assert set(FACTS) - asked == set()


def test_every_model_an_inventory_may_name_has_an_architecture() -> None:
    known = {model for models in MODELS.values() for model in models}
    assert set(gpu_models.MODELS) <= known


def test_the_sums_are_those_of_the_files() -> None:
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted((TOP / "data").glob("*.yaml"))
    )
    assert (TOP / "data/SHA256SUMS").read_text("utf-8") == sums


@pytest.mark.parametrize("path", sorted((TOP / "data").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_file_fits_its_schema_and_its_theme_is_its_name(path: Path) -> None:
    schema = json.loads((TOP / "schema/rules.json").read_text("utf-8"))
    data = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)
    jsonschema.validate(data, schema, cls=jsonschema.Draft202012Validator)
    assert data["theme"] == path.stem


# --- sets that are known to be good ------------------------------------------------------------


@pytest.mark.parametrize("driver", ["570.211.01", "580.65.06", "580.178.04", "595.91.07"])
@pytest.mark.parametrize("system", [("debian12", "6.1.0-49"), ("debian13", "6.12.57+deb13-amd64")])
@pytest.mark.parametrize("gpu", ["H100", "L40S", "A100", "B200", "T4"])
def test_drivers_on_debian_are_not_blocked(driver: str, system: tuple[str, str], gpu: str) -> None:
    given = {"driver": driver, "os": system[0], "kernel": system[1], "gpu": gpu}
    report = compat.check(compat.facts({**given, "module_type": "open"}), rules=RULES)
    assert [result.rule.id for result in report.blocks] == []


# --- sets that are known to be bad ----------------------------------------------------------

_BAD = [
    ({"cuda": "10.2", "driver": "418.87.01", "cuda_compat": "no"}, "cuda-10.2-driver", "block"),
    ({"cuda": "10.1.243", "driver": "410.48", "cuda_compat": "no"}, "cuda-10.1-driver", "block"),
    ({"cuda": "11.0.3", "driver": "450.51.05", "cuda_compat": "no"}, "cuda-11.0-driver", "block"),
    ({"cuda": "12.4.1", "driver": "535.183.01"}, "cuda-12.4-driver", "inform"),
    ({"toolkit": "1.17.7"}, "toolkit-cve-2025-23266", "warn"),
    ({"toolkit": "1.17.4", "cdi": "yes"}, "toolkit-cve-2025-23266", "warn"),
    ({"toolkit": "1.19.0"}, "toolkit-cve-2026-24260", "warn"),
    ({"gpu_operator": "26.3.1"}, "operator-cve-2026-24260", "warn"),
    ({"gpu": "B300", "driver": "580.65.06"}, "driver-first-b300", "block"),
    ({"gpu": "GB300", "driver": "570.211.01", "mig": "no"}, "driver-first-b300", "block"),
    ({"driver": "545.29.06", "kernel": "6.8.0", "module_source": "dkms"}, "build-545-linux-6.8", "warn"),
    ({"driver": "580.119.02", "kernel": "7.0.9", "module_source": "dkms"}, "build-580-linux-7.0", "warn"),
    ({"driver": "580.142", "kernel": "7.1.0", "module_source": "dkms"}, "build-580-linux-7.1", "warn"),
    ({"driver": "545.23.08"}, "driver-eol-545", "warn"),
    ({"driver": "555.42.06"}, "driver-eol-555", "warn"),
    ({"dcgm": "3.3.9", "gpu": "B200"}, "dcgm-blackwell", "warn"),
    ({"dcgm": "3.3.9", "gpu": "NVIDIA GeForce RTX 5090"}, "dcgm-blackwell", "warn"),
    ({"dcgm": "4.3.1", "gpu": "RTX PRO 6000"}, "dcgm-compute-capability-12", "warn"),
    ({"gpu": "GeForce RTX 4080 SUPER", "mig": "yes"}, "mig-not-on-geforce", "block"),
    ({"gpu": "A40,L40S", "mig": "yes"}, "mig-not-on-small-ampere", "block"),
    ({"gpu": "GTX 1080 Ti", "driver": "595.91.07"}, "driver-drops-pascal", "block"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "name", "verdict"), _BAD, ids=lambda value: str(value)[:40])
def test_a_set_that_is_known_to_be_bad_is_found(
    given: dict[str, object], name: str, verdict: str
) -> None:
    report = compat.check(compat.facts(given), rules=RULES)
    held = {result.rule.id: result.rule.verdict.value for result in report.results if result.holds}
    assert held.get(name) == verdict


@pytest.mark.parametrize(
    "given",
    [
        {"cuda": "11.0.3", "driver": "450.51.06", "cuda_compat": "no"},
        {"cuda": "10.0.130", "driver": "410.48", "cuda_compat": "no"},
        {"toolkit": "1.17.8"},
        {"gpu": "B300", "driver": "580.82.07", "module_type": "open"},
        {"gpu": "RTX PRO 6000", "driver": "570.172.08", "module_type": "open"},
        {"gpu": "RTX PRO 4500", "driver": "580.142", "module_type": "open"},
        {"gpu": "GeForce RTX 3090", "driver": "580.142", "mig": "no"},
        {"gpu": "A40,RTX PRO 6000", "driver": "580.142", "module_type": "open", "mig": "yes"},
        {"gpu": "A10,H200", "driver": "580.142", "module_type": "open", "mig": "yes"},
        {"dcgm": "4.0.0", "gpu": "B200"},
    ],
    ids=str,
)
def test_the_first_good_release_is_not_blocked(given: dict[str, object]) -> None:
    report = compat.check(compat.facts(given), rules=RULES)
    assert [result.rule.id for result in report.blocks] == []


@pytest.mark.parametrize(
    ("kernel", "first_good"),
    [("6.19.2", "580.126.18"), ("7.0.9", "580.142"), ("7.1.0", "580.159.04")],
)
def test_a_driver_that_is_too_old_for_a_kernel_is_told_the_first_that_builds_there(
    kernel: str, first_good: str
) -> None:
    given = {"driver": "580.119.02", "kernel": kernel, "module_source": "dkms"}
    report = compat.check(compat.facts(given), rules=RULES)
    built = [one.rule for one in report.warnings if one.rule.id.startswith("build-580")]
    (rule,) = built
    assert first_good in rule.fix


def test_a_release_of_a_cuda_series_is_meant_with_its_patches() -> None:
    """CUDA 12.4.1 is 12.4; a rule that names a bare minor release would miss it."""
    bare = [rule.id for rule in RULES if re.search(r"'cuda': '", str(rule.written))]
    assert bare == []
