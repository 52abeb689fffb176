"""Metrics that a document asks for: the DCGM host engine and its exporter, as services of the host.

Surprising: in a ClusterPolicy that says nothing of them both are on. They bring packages, and ports that
the Operator's own pods take as well, so only a file that says ``enabled: true`` gets them here.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go (TransformDCGMExporter: which host engine),
    internal/config. NVIDIA/dcgm-exporter: tags of images (DCGM's version, then the exporter's).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpustate.errors import PolicyError
from gpustate.formats.words import shown
from gpustate.gpu_operator.asked import Source, Wanted
from gpustate.gpu_operator.companions import CONFIG_MAP
from gpustate.gpu_operator.driver import software_version
from gpustate.gpu_operator.operands import lacks, missing, needed, without

COUNTERS_KEY = "dcgm-metrics.csv"
#: Where the exporter looks for jobs when the file does not say.
JOBS = "/var/lib/dcgm-exporter/job-mapping"
_NUMBER = re.compile(r"\d+(?:\.\d+)+")


def wanted_metrics(source: Source) -> Iterator[Wanted]:
    """Yield the states for DCGM and its exporter.

    Raises:
        PolicyError: a version that is none, or a ConfigMap that is missing or lacks its key.
    """
    engine = source.enabled("dcgm", otherwise=False)
    if engine:
        state = Wanted("dcgm")
        _give_version(source, state, "dcgm", 0)
        yield state
    else:
        source.not_used("dcgm.enabled is not true", "dcgm.")
    if not source.enabled("dcgmExporter", otherwise=False):
        source.not_used("dcgmExporter.enabled is not true", "dcgmExporter.")
        return
    lacking = missing(source, "dcgmExporter.config.name")
    if lacking is not None:
        source.notes.append(without(source, lacking, "dcgmExporter.config.name", "dcgm-exporter"))
        source.not_used("that object is not there", "dcgmExporter.", but=("dcgmExporter.enabled",))
        return
    state = Wanted("dcgm-exporter")
    _give_version(source, state, "dcgmExporter", 1)
    if not engine:
        state.give("engine", "")  # its own, inside it
    spec = source.spec
    name = spec.get("dcgmExporter", "config", "name")
    if name is not None and name.value:
        found = needed(source, name, "dcgmExporter.config.name")
        entry = found.entries.get(COUNTERS_KEY)
        if entry is None:
            raise lacks(found, COUNTERS_KEY)
        path = f"{CONFIG_MAP} {found.name}"
        state.give("counters", path, source.place(name))
        state.give("contents", {path: entry.text}, source.place(name))
    jobs = spec.get("dcgmExporter", "hpcJobMapping")
    if jobs is not None and source.enabled("dcgmExporter.hpcJobMapping", otherwise=False):
        folder = jobs.get("directory")
        given = folder.value if folder is not None and folder.value else JOBS
        state.give("job_mapping", given, source.place(folder or jobs))
    yield state


def _give_version(source: Source, state: Wanted, section: str, which: int) -> None:
    """The version in an image tag; of the exporter's, ``4.6.0-4.8.3``, the second."""
    path = f"{section}.version"
    item = source.spec.get(section, "version")
    if item is None or not item.value:
        return
    found = _NUMBER.findall(software_version(source, item, path))
    if not found:
        raise PolicyError(
            f"{path} is {shown(item.value)}, wanted a version such as 4.6.0",
            place=source.place(item),
        )
    state.give("version", found[min(which, len(found) - 1)], source.place(item))
