"""Ask a node for everything the chain of proofs is judged by, without changing anything on it.

For ``explain``: it shows the first broken link as things are now. The kernel is not run; what a
kept proof says of CUDA and of containers is taken as long as the proof still stands.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from gpustate.core.node import Node
from gpustate.diagnosis import chain, chain_probe
from gpustate.diagnosis.validation_record import read_proof
from gpustate.errors import ProbeError
from gpustate.probes import cri_queries
from gpustate.probes.cri_queries import CriShell
from gpustate.probes.gpu_facts import LIBRARY_FOLDERS, GpuFacts

#: What timeout(1) ends with when it ended the command, by TERM and by KILL.
_TIMED_OUT = (124, 137)


def query_chain(
    node: Node,
    wanted: chain.Wanted | None = None,
    *,
    timeout_s: int = 20,
    limit_s: int = 0,
    program_s: int = 15,
) -> chain.ChainObservation:
    """Observe a node; all asks leave in one exec. Judge with ``chain.evaluate(observed)``.

    Args:
        node: any node; it needs no validator.
        wanted: what should hold; as the kept proof was asked for when not given.
        timeout_s: how long NVML may take.
        limit_s: how long the rest may take; 0: no limit.
        program_s: how long any one program of it may take.

    Raises:
        ProbeError: the limit was reached.
    """
    nvml = node.query(GpuFacts(timeout_s))
    kept = read_proof(node.shell('cat "$G/proof.json"').stdout)
    settings = f"L={shlex.quote(LIBRARY_FOLDERS)}\n"
    script = chain_probe.KEY_SCRIPT + settings + chain_probe.CHAIN_SCRIPT
    if limit_s:
        script = f"limit={program_s}\n{script}"
        script = f"timeout -k 1 {limit_s} sh -c {shlex.quote(script)}"
    answer = node.query(CriShell(cri_queries.PLACES + script))
    if limit_s and answer.status in _TIMED_OUT:
        last = answer.stdout.rstrip().rpartition("\n")[2].partition("=")[0]
        raise ProbeError(
            f"something hangs: the node did not tell all within {limit_s} s (the last it told was {last or 'nothing'})",
            fix="look for processes in state D: ps -eo pid,stat,args",
        )
    text = answer.stdout
    observed = chain_probe.parse(text, nvml)
    if kept is None:
        return replace(observed, wanted=wanted or observed.wanted)
    observed = replace(observed, wanted=wanted or chain.Wanted.parse(kept.made_for.wanted))
    now = chain.key(
        observed.boot_id,
        observed.loaded,
        nvml,
        observed.runtime_digest,
        observed.wanted,
        observed.quarantine,
        observed.files_digest,
        observed.manager,
    )
    stands = not kept.made_for.moved(replace(now, wanted=kept.made_for.wanted))
    if not stands:
        return observed
    return replace(observed, cuda=kept.cuda or None, containers=kept.containers)
