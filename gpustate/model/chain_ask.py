"""Ask a node for everything the chain of proofs is judged by, without changing anything on it.

For ``explain``: it shows the first broken link as things are now. The kernel is not run; what a
kept proof says of CUDA is taken as long as the proof still stands.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from gpustate.model import chain, chain_seen
from gpustate.model.gpu_facts import LIBRARY_FOLDERS, GpuFacts
from gpustate.model.node import Node
from gpustate.model.proof import read_proof


def ask_chain(node: Node, wanted: chain.Wanted | None = None) -> chain.Seen:
    """Observe a node; all asks leave in one exec. Judge with ``chain.evaluate(seen)``.

    Args:
        node: any node; it needs no validator.
        wanted: what should hold; as the kept proof was asked for when not given.
    """
    nvml = node.ask(GpuFacts())
    kept = read_proof(node.shell('cat "$G/proof.json"').stdout)
    settings = f"L={shlex.quote(LIBRARY_FOLDERS)}\n"
    text = node.shell(chain_seen.KEY_SCRIPT + settings + chain_seen.CHAIN_SCRIPT).stdout
    seen = chain_seen.parse(text, nvml)
    if kept is None:
        return replace(seen, wanted=wanted or seen.wanted)
    seen = replace(seen, wanted=wanted or chain.Wanted.parse(kept.made_for.wanted))
    now = chain.key(seen.boot_id, seen.loaded, nvml, seen.runtime_digest, seen.wanted)
    stands = not kept.made_for.moved(replace(now, wanted=kept.made_for.wanted))
    return replace(seen, cuda=kept.cuda) if stands and kept.cuda else seen
