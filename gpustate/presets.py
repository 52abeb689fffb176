"""Whole stacks, as policies; every state with its defaults unless told otherwise.

    policy = presets.kubernetes_node(driver={"branch": 570}, containerd={"default": True})

An override is the parameters of one state, its name written with underscores; ``None`` leaves the
state out. A state of your own is added by making a policy of both::

    policy = Policy(*presets.slurm_node().states, MemlockLimits())
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from gpustate import registry
from gpustate.core.policy import Policy, build
from gpustate.documents import JsonView
from gpustate.errors import PolicyError

_DRIVER = (
    *("preflight", "nouveau", "driver-repository", "driver", "persistenced"),
    *("nvlsm", "fabric-manager"),
)
_CONTAINERS = ("toolkit-repository", "container-toolkit")
#: Each does nothing on a node where its runtime is not.
_RUNTIMES = ("containerd", "k3s", "k0s", "microk8s", "crio")
_KUBERNETES = (
    *(*_DRIVER, *_CONTAINERS, *_RUNTIMES),
    *("cdi", "dev-char", "gpu-labels", "quarantine", "validator"),
)

Override = JsonView | None


_DEFAULTS: JsonView = {}
#: Parameters by state, of each preset.
STACKS: Mapping[str, Mapping[str, JsonView]] = {
    "kubernetes-node": dict.fromkeys(_KUBERNETES, _DEFAULTS),
    # Slurm's containers (enroot, Apptainer) need no handler in a runtime.
    "slurm-node": {
        **dict.fromkeys((*_DRIVER, *_CONTAINERS, "cdi", "quarantine"), _DEFAULTS),
        "validator": {"handler": ""},
    },
    "plain-node": dict.fromkeys(
        (*_DRIVER, *_CONTAINERS, "containerd", "docker", "podman", "cdi", "validator"), _DEFAULTS
    ),
    "image": dict.fromkeys(_KUBERNETES, _DEFAULTS),
}


def kubernetes_node(**overrides: Override) -> Policy:
    """Driver, container toolkit, the runtime's handler, CDI and labels, with validation.

    Raises:
        PolicyError: an override of a state the stack does not have, or a wrong parameter.
    """
    return _policy("kubernetes-node", overrides)


def slurm_node(**overrides: Override) -> Policy:
    """Driver, container toolkit and CDI, for jobs with and without containers; no daemon is touched.

    Raises:
        PolicyError: an override of a state the stack does not have, or a wrong parameter.
    """
    return _policy("slurm-node", overrides)


def plain_node(**overrides: Override) -> Policy:
    """Driver, container toolkit and CDI, with docker, podman or containerd where they are; no scheduler.

    Raises:
        PolicyError: an override of a state the stack does not have, or a wrong parameter.
    """
    return _policy("plain-node", overrides)


def image(**overrides: Override) -> Policy:
    """The stack of a Kubernetes node, to be baked; an image has no GPUs by which to choose a driver.

    So give ``driver={"branch": ..., "module_type": ...}``, or bake with ``--gpu``. What needs GPUs,
    the validator's proofs above all, is left to the first boot.

    Raises:
        PolicyError: an override of a state the stack does not have, or a wrong parameter.
    """
    return _policy("image", overrides)


def _policy(name: str, overrides: Mapping[str, Override]) -> Policy:
    stack = STACKS[name]
    by_state = {key.replace("_", "-"): value for key, value in overrides.items()}
    for word, key in zip(overrides, by_state, strict=True):
        if key not in stack:
            near = difflib.get_close_matches(key, stack, 1)
            raise PolicyError(
                f"the preset {name!r} has no state {key!r}",
                fix=f"did you mean {near[0]!r}" if near else f"it has {', '.join(stack)}",
            )
        parameters = by_state[key]
        if not (parameters is None or isinstance(parameters, Mapping)):
            raise PolicyError(
                f"the preset {name!r} takes the parameters of {key!r} as a dict, not {parameters!r}",
                fix=f'write {word}={{"...": ...}}, or {word}=None to leave it out',
            )
    states = [
        build(registry.get(state), {**defaults, **(by_state.get(state) or {})})
        for state, defaults in stack.items()
        if by_state.get(state, _DEFAULTS) is not None
    ]
    return Policy(*states, name=name)
