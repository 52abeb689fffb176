"""Print how ``gpustate watch`` runs as a service: a systemd unit, a Deployment, or the recipe of its image."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gpustate import __version__
from gpustate.cli import common
from gpustate.errors import UsageError

KINDS = ("unit", "deployment", "dockerfile")
_OWN = ("--print", "--image")
#: Options whose values are files of this machine.
_FILES = {
    "values": "--values",
    "bundle": "--bundle",
    "private_key": "--private-key",
    "vault_password_file": "--vault-password-file",
    "vault_id": "--vault-id",
}
_INVENTORY = "inventory.yml"


def text_of(kind: str, policy: str, image: str, options: Mapping[str, Any]) -> str:
    """The text to print.

    Args:
        kind: one of :data:`KINDS`.
        policy, options: of the command line.
        image: of the pod; empty: gpustate's name and version.

    Raises:
        UsageError: a pod would not have what an option names.
    """
    from gpustate.watch import units

    words = _words(sys.argv[1:])
    if kind == "dockerfile":
        return units.dockerfile(__version__)
    if kind == "unit":
        program = shutil.which(sys.argv[0]) or os.path.abspath(sys.argv[0])
        kubeconfig = os.environ.get("KUBECONFIG", "")
        return units.systemd_unit([os.path.abspath(program), *words], os.getcwd(), kubeconfig)
    return _deployment(policy, image or f"gpustate:{__version__}", words, options)


def _words(argv: Sequence[str]) -> list[str]:
    """The command line without the options of this file."""
    words: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word in _OWN:
            skip = True
        elif not word.startswith(tuple(f"{name}=" for name in _OWN)):
            words.append(word)
    return words


def _deployment(policy: str, image: str, words: Sequence[str], options: Mapping[str, Any]) -> str:
    from gpustate.files import TextFiles
    from gpustate.formats.yaml_events import dump_objects
    from gpustate.watch import units

    for name, option in _FILES.items():
        if options.get(name):
            raise UsageError(
                f"{option} names a file of this machine, which the pod does not have",
                fix="put it into the policy",
            )
    reader = TextFiles("policy", UsageError, 1)
    if not os.path.isfile(policy):
        raise UsageError("the pod needs the policy's file", place=policy, fix="name a file")
    files = {os.path.basename(policy): reader.text(policy), _INVENTORY: _inventory(options)}
    lock = common.lock_file(policy, options)
    if lock is not None:
        files[os.path.basename(lock)] = reader.text(lock)
    rules: list[dict[str, Any]] = []
    if options["cluster_objects"]:
        rules += units.OBJECT_RULES
        from gpustate.manifests.cluster_part import settings_of

        if settings_of(common.load_policy(policy, options)).install_nfd:
            rules += units.DISCOVERY_RULES
    arguments = _in_pod(words, policy, str(options["inventory"] or ""), lock or "")
    return dump_objects(units.manifests(units.Service(image, arguments, files, rules)))


def _in_pod(words: Sequence[str], policy: str, inventory: str, lock: str) -> list[str]:
    """The command line with the paths that the pod has."""
    from gpustate.watch.units import POLICY_FOLDER

    arguments: list[str] = []
    skip = False
    for word in words:
        option, _, value = word.partition("=")
        if skip:
            skip = False
        elif option in ("--kubeconfig", "-i", "--inventory", "-u", "--user"):
            skip = not value
        elif word.startswith("-i") and word[2:] == inventory:
            continue
        elif word in (policy, lock):
            arguments.append(f"{POLICY_FOLDER}/{os.path.basename(word)}")
        else:
            arguments.append(word)
    return [*arguments, "--inventory", f"{POLICY_FOLDER}/{_INVENTORY}"]


def _inventory(options: Mapping[str, Any]) -> str:
    """The inventory of the pod: the Nodes of its cluster.

    Raises:
        UsageError: the inventory is another one.
    """
    import yaml

    from gpustate.formats.yaml_events import Dumper
    from gpustate.inventory import kubernetes
    from gpustate.inventory.documents import parse
    from gpustate.inventory.files import read_text
    from gpustate.watch.units import SSH_FOLDER

    source = str(options["inventory"] or "")
    data: Any = None
    if source == kubernetes.NAME or source.startswith(kubernetes.PREFIX):
        data = {"plugin": kubernetes.NAME}
    elif os.path.isfile(source) and source.endswith((".yml", ".yaml")):
        data = parse(read_text(source), source).data
    if kubernetes.is_ours(data) and "clusters" in data:
        raise UsageError(
            "lists clusters, and a pod watches only the cluster it runs in",
            place=source,
            fix="write a file for each cluster, without clusters:, and deploy each with its own",
        )
    if not kubernetes.is_ours(data):
        raise UsageError(
            "the pod's inventory is the Nodes of its cluster",
            place=source or None,
            fix="use -i kubernetes: or a file with plugin: kubernetes",
        )
    values = {
        "ansible_user": options["user"] or "root",
        "ansible_ssh_private_key_file": f"{SSH_FOLDER}/id_ed25519",
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={SSH_FOLDER}/known_hosts",
    }
    # Plain copies: what a file's reader returns has types of its own.
    variables = {**values, **{str(key): value for key, value in (data.get("vars") or {}).items()}}
    document = {**data, "kubeconfig": kubernetes.IN_CLUSTER, "vars": variables}
    text: str = yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    return text
