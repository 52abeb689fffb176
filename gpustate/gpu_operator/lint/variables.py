"""Environment variables of the components other than the toolkit: misspelt, or in conflict with a setting.

An unknown variable gets no finding: containers accept proxies, log levels and whatever a newer image
reads. Only a name similar to one that the component reads does.

Surprising: since v25.3.3 ``devicePlugin.env`` is set after ``mig.strategy``, so its ``MIG_STRATEGY``
takes precedence in the device plugin. In GPU feature discovery ``mig.strategy`` is set last and takes
precedence.

Sources:
    NVIDIA/gpu-operator v23.9.0 to v26.7.0: controllers/object_controls.go (TransformDevicePlugin,
    TransformGPUDiscoveryPlugin); those of ``data/variables.txt``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache

from gpustate.formats.words import quote
from gpustate.gpu_operator import tables
from gpustate.gpu_operator.keys import Support
from gpustate.gpu_operator.lint.context import Context
from gpustate.gpu_operator.lint.finding import Finding
from gpustate.gpu_operator.runtime import Variable, environment

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
#: Before this release, mig.strategy was set after it.
_ENV_IS_LAST_SINCE = "v25.3.3"
_PARTS = ("cuda", "plugin", "driver", "toolkit", "vfioPCI", "vgpuManager", "vgpuDevices")
_MANAGERS = ("driver.manager", "manager", "vgpuManager.driverManager", "vfioManager.driverManager")
#: Components by what their containers read: sections of the table, beside those of all.
READ: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("validator", *(f"validator.{part}" for part in _PARTS)), ("validator",)),
    **dict.fromkeys(_MANAGERS, ("driver manager",)),
    "devicePlugin": ("devicePlugin", "config manager"),
    "gfd": ("gfd", "config manager"),
    "migManager": ("migManager",),
    "dcgmExporter": ("dcgmExporter",),
}
#: Variables that the reader supports; no state has the others.
_CARRIED_OUT: Mapping[str, frozenset[str]] = {
    "validator.cuda": frozenset({"WITH_WORKLOAD"}),
    "validator.driver": frozenset({"DISABLE_DEV_CHAR_SYMLINK_CREATION"}),
    "migManager": frozenset({"WITH_REBOOT"}),
    "toolkit": frozenset({"RUNTIME", "NO_RUNTIME_CONFIG"}),
}


@cache
def read_by(*sections: str) -> frozenset[str]:
    """The variables that containers read, by sections of ``data/variables.txt``."""
    table = tables.sections("variables.txt")
    return frozenset(
        name for section in sections for cells in table[section] for name in cells[0].split()
    )


def misspelt(context: Context) -> Iterator[Finding]:
    """Names similar to those that a component reads."""
    for section, read in READ.items():
        supported = read_by("all", *read)
        for name, _, line in context.env(section):
            if name in supported or name.upper() in _PROXIES:
                continue
            near = nearest_name(name, supported)
            if near:
                yield Finding(
                    "variable",
                    f"{section}.env",
                    f"{section}.env {quote(name)} is not read by this container",
                    context.file,
                    line,
                    f"did you mean {near}",
                    context.title,
                )


#: Read only without autoUpgrade (NVIDIA/k8s-driver-manager: isAutoDrainEnabled), and the key to use with it.
_WITHOUT_UPGRADES = {
    "ENABLE_GPU_POD_EVICTION": "podDeletion",
    "ENABLE_AUTO_DRAIN": "drain.enable",
    "DRAIN_USE_FORCE": "drain.force",
    "DRAIN_TIMEOUT_SECONDS": "drain.timeoutSeconds",
    "DRAIN_DELETE_EMPTYDIR_DATA": "drain.deleteEmptyDir",
    "DRAIN_POD_SELECTOR_LABEL": "drain.podSelector",
}


def left_to_upgrades(context: Context) -> Iterator[Finding]:
    """Variables of the driver manager that the Operator's upgrades of the driver replace."""
    prefix = "" if context.kind == "nvidiadriver" else "driver."
    if context.value(f"{prefix}upgradePolicy.autoUpgrade") is not True:
        return
    for name, _, line in context.env(f"{prefix}manager"):
        key = _WITHOUT_UPGRADES.get(name, "")
        if key == "podDeletion" and context.kind == "helm":
            key = "gpuPodDeletion"
        if key:
            yield Finding(
                "variable",
                f"{prefix}manager.env",
                f"{prefix}manager.env {quote(name)} is ignored with {prefix}upgradePolicy.autoUpgrade",
                context.file,
                line,
                f"use {prefix}upgradePolicy.{key}",
                context.title,
            )


def nearest_name(name: str, supported: frozenset[str]) -> str | None:
    """The known name that was probably meant: similar as a whole and word by word."""
    folded = name.upper().replace("-", "_")
    for near in difflib.get_close_matches(folded, sorted(supported), 3, 0.8):
        words = near.split("_")
        if all(difflib.get_close_matches(word, words, 1, 0.6) for word in folded.split("_")):
            return near
    return None


def strategies(context: Context) -> Iterator[Finding]:
    """``MIG_STRATEGY`` in conflict with ``mig.strategy``."""
    strategy = context.value("mig.strategy")
    if not strategy:
        return  # the variable is not set
    last = not context.before(_ENV_IS_LAST_SINCE)
    for section, effect in (
        (
            "devicePlugin",
            "takes precedence in the device plugin; GPU feature discovery uses mig.strategy"
            if last
            else "has no effect: mig.strategy takes precedence in the device plugin",
        ),
        ("gfd", "has no effect: mig.strategy takes precedence in GPU feature discovery"),
    ):
        for name, value, line in context.env(section):
            if name == "MIG_STRATEGY" and isinstance(value, str) and value not in ("", strategy):
                yield Finding(
                    "variable",
                    f"{section}.env",
                    f"{section}.env MIG_STRATEGY is {quote(value)} and mig.strategy is {quote(strategy)}"
                    f": the variable {effect}",
                    context.file,
                    line,
                    "set mig.strategy only",
                    context.title,
                )


def unsupported_variables(context: Context) -> dict[int, tuple[Support, str]]:
    """Support of variables that no state uses, by the identity of their name and value."""
    by_identity: dict[int, tuple[Support, str]] = {}
    for section, supported in _CARRIED_OUT.items():
        if section.partition(".")[0] in context.containers:
            continue
        env = context.item_at(f"{section}.env")
        for variable_item in env.value if env is not None and isinstance(env.value, list) else ():
            if not isinstance(variable_item.value, dict) or variable_item.text("name") in supported:
                continue
            if section == "migManager":
                support = (Support.KUBERNETES, "an environment variable of a container")
            elif section == "toolkit":
                variable = environment().get(variable_item.text("name"), Variable())
                if variable.states:
                    continue
                support = (Support.LATER, variable.why or "no state has such a setting")
            else:
                support = (Support.LATER, "the validator has no such setting")
            by_identity.update({id(child): support for child in variable_item.value.values()})
    return by_identity


CHECKS = (misspelt, left_to_upgrades, strategies)
