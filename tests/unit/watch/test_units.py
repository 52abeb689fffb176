"""The rights of a watcher that runs as a pod are those that its requests need, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import clusterusers

from gpustate.schedulers import node_events
from gpustate.schedulers.kubernetes.rights import CHANGING
from gpustate.watch import units, watcher


def rights(rules: Iterable[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Verb, API group and resource of each right."""
    return {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_role_has_what_watching_and_draining_need() -> None:
    dra = {(verb, "resource.k8s.io", "resourceslices") for verb in ("list", "patch")}
    needed = {*watcher.RIGHTS, *CHANGING, *dra, node_events.RIGHT}
    assert rights((*units.RULES, *units.LEASE_RULES)) == needed


def test_the_role_for_objects_has_the_documented_rights_and_no_others() -> None:
    own = rights((*units.RULES, *units.LEASE_RULES))
    documented = {
        place: {(verb, group, resource) for group, resource, verb in clusterusers.documented(place)}
        for place in (clusterusers.ALWAYS, clusterusers.INSTALLING)
    }
    objects = rights(units.OBJECT_RULES) | own
    events = {("list", "", "events")}
    assert objects == documented[clusterusers.ALWAYS] | own | events
    discovery = rights(units.DISCOVERY_RULES) | objects
    assert discovery == documented[clusterusers.INSTALLING] | objects


def test_words_of_a_unit_survive_systemd() -> None:
    words = ("/usr/bin/gpustate", "watch", "p.yaml", "--limit", "app in (a, b)", "10%", "$x")
    line = next(
        one
        for one in units.systemd_unit(words, "/srv").splitlines()
        if one.startswith("ExecStart=")
    )
    assert line == ('ExecStart=/usr/bin/gpustate watch p.yaml --limit "app in (a, b)" 10%% "$$x"')


def test_a_unit_has_the_kubeconfig_of_its_environment() -> None:
    text = units.systemd_unit(("/usr/bin/gpustate",), "/srv", "/home/a b/config")
    assert 'Environment="KUBECONFIG=/home/a b/config"\n' in text
    assert "KUBECONFIG" not in units.systemd_unit(("/usr/bin/gpustate",), "/srv")
    assert "man:" not in text, "gpustate has no man page"
