"""Metrics that a document requests: the DCGM host engine and its exporter, as services of the host.

Surprising: a ClusterPolicy enables both by default. They need packages, and ports that the Operator's own
pods use as well, so gpustate sets them up only for an explicit ``enabled: true``. Otherwise they are pods, with
``--cluster-objects`` (:mod:`gpustate.gpu_operator.exporters`).

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go (TransformDCGMExporter: which host engine),
    internal/config. NVIDIA/dcgm-exporter: tags of images (DCGM's version, then the exporter's).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpustate.errors import PolicyError
from gpustate.formats.words import quote
from gpustate.gpu_operator.companions import CONFIG_MAP
from gpustate.gpu_operator.desired import DesiredState, Source
from gpustate.gpu_operator.driver import software_version
from gpustate.gpu_operator.exporters import JOBS, NODE_STATUS, counters_of, in_pods, on_hosts
from gpustate.gpu_operator.operands import left_out_note, missing_reference
from gpustate.manifests.settings import COUNTERS_KEY

_NUMBER = re.compile(r"\d+(?:\.\d+)+")


def desired_metrics(source: Source) -> Iterator[DesiredState]:
    """Yield the states for DCGM and its exporter.

    Raises:
        PolicyError: an invalid version, or a ConfigMap that is missing or lacks its key.
    """
    engine = on_hosts(source, "dcgm")
    if engine:
        state = DesiredState("dcgm")
        _give_version(source, state, "dcgm", 0)
        yield state
    for section in ("dcgm", "dcgmExporter", NODE_STATUS):
        _note_unused(source, section)
    if not on_hosts(source, "dcgmExporter"):
        return
    lacking = missing_reference(source, "dcgmExporter.config.name")
    if lacking is not None:
        source.notes.append(
            left_out_note(source, lacking, "dcgmExporter.config.name", "dcgm-exporter")
        )
        source.note_unused(
            "the ConfigMap was not found", "dcgmExporter.", exempt=("dcgmExporter.enabled",)
        )
        return
    state = DesiredState("dcgm-exporter")
    _give_version(source, state, "dcgmExporter", 1)
    if not engine:
        state.set("engine", "")  # the engine embedded in the exporter
    spec = source.spec
    name = spec.get("dcgmExporter", "config", "name")
    if name is not None and name.value:
        path = f"{CONFIG_MAP} {name.value}"
        state.set("counters", path, source.place(name))
        text = counters_of(source, name)[COUNTERS_KEY]
        state.set("contents", {path: text}, source.place(name))
    jobs = spec.get("dcgmExporter", "hpcJobMapping")
    if jobs is not None and source.enabled("dcgmExporter.hpcJobMapping", otherwise=False):
        folder = jobs.get("directory")
        directory = folder.value if folder is not None and folder.value else JOBS
        state.set("job_mapping", directory, source.place(folder or jobs))
    yield state


def _note_unused(source: Source, name: str) -> None:
    """Note the settings of a section that are not used where it runs."""
    of_pods = [setting for setting in source.settings if setting.path.startswith(f"{name}.")]
    if on_hosts(source, name):
        unused = [setting.path for setting in of_pods if setting.field.objects]
        why = f"{name}.enabled is true in the file, so it is a service of the nodes; as pods with --set {name}.enabled=null"
        source.note_unused(why, *unused, warn=True)
        source.noted.update(unused)
    elif source.kind == "gpucluster" or not in_pods(source, name):
        source.note_unused(f"{name}.enabled is not true", f"{name}.")
        source.noted.update(setting.path for setting in of_pods if setting.field.objects)
    else:
        source.in_objects.update(setting.path for setting in of_pods)


def _give_version(source: Source, state: DesiredState, section: str, index: int) -> None:
    """Set the version from an image tag; the second part of the exporter's ``4.6.0-4.8.3``."""
    path = f"{section}.version"
    item = source.spec.get(section, "version")
    if item is None or not item.value:
        return
    numbers = _NUMBER.findall(software_version(source, item, path))
    if not numbers:
        raise PolicyError(
            f"{path} is {quote(item.value)}, wanted a version such as 4.6.0",
            place=source.place(item),
        )
    state.set("version", numbers[min(index, len(numbers) - 1)], source.place(item))
