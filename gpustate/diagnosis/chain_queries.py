"""Query a node for everything that the checks of the validation need. Read-only.

For ``explain``. No kernel is run and no container is started: the results of both come from the validation
record on the node, as long as it is still valid.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from gpustate.core.node import Node
from gpustate.diagnosis import chain, chain_probe
from gpustate.diagnosis.validation_record import read_record
from gpustate.errors import ProbeError
from gpustate.probes import cri_queries
from gpustate.probes.cri_queries import CriShell
from gpustate.probes.gpu_facts import LIBRARY_FOLDERS, GpuFacts

#: Prints the validation record.
RECORD = 'cat "$G/proof.json"'
#: Exit codes of timeout(1) after TERM and after KILL.
_TIMED_OUT = (124, 137)


def query_chain(
    node: Node, *, timeout_s: int = 20, limit_s: int = 0, program_s: int = 15
) -> chain.ChainObservation:
    """Observe a node in one exec; evaluate the result with ``chain.evaluate(observed)``.

    Args:
        node: any node; it needs no validator.
        timeout_s: limit for NVML.
        limit_s: limit for everything else; 0: none.
        program_s: limit for one program of it.

    Raises:
        ProbeError: the limit was reached.
    """
    nvml = node.query(GpuFacts(timeout_s))
    record = node.shell(RECORD).stdout
    settings = f"L={shlex.quote(LIBRARY_FOLDERS)}\n"
    script = chain_probe.KEY_SCRIPT + settings + chain_probe.CHAIN_SCRIPT
    if limit_s:
        script = f"limit={program_s}\n{script}"
        script = f"timeout -k 1 {limit_s} sh -c {shlex.quote(script)}"
    answer = node.query(CriShell(cri_queries.PLACES + script))
    if limit_s and answer.status in _TIMED_OUT:
        last = answer.stdout.rstrip().rpartition("\n")[2].partition("=")[0]
        raise ProbeError(
            f"a program hangs: the probe did not finish within {limit_s} s (last output: {last or 'none'})",
            fix="look for processes in state D: ps -eo pid,stat,args | grep ' D'",
        )
    text = answer.stdout
    return with_record(chain_probe.parse(text, nvml), record)


def with_record(observed: chain.ChainObservation, record: str) -> chain.ChainObservation:
    """Add what a node's validation record has, which is its GPUs, and the results of tests while it is valid.

    Args:
        observed: with the output of ``KEY_SCRIPT``.
        record: text of proof.json.
    """
    validation = read_record(record)
    observed = replace(observed, recorded_gpus=chain_probe.known_gpus(record), recorded=())
    if validation is None:
        return observed
    observed = replace(observed, expected=chain.Expected.parse(validation.made_for.wanted))
    key = chain.key(observed, observed.expected)
    valid = not validation.made_for.moved(replace(key, wanted=validation.made_for.wanted))
    if not valid:
        return observed
    recorded = tuple((check.name, check.evidence) for check in validation.checks)
    return replace(
        observed, cuda=validation.cuda or None, containers=validation.containers, recorded=recorded
    )
