"""Causes at the links ``toolkit``, ``cdi`` and ``cuda``: a file is there, and nobody can read sense from it.

Such a file is not missing, so what helps against a missing one may not help here: a folder in the place of a
specification stays in the way of a new one. Where gpustate has ever written a file, the node keeps its bytes
as they were before, under a name that nobody can guess; the evidence tells it.

Surprising: a CDI specification that a runtime cannot read is left out without a word, and costs nothing while
another one names the same devices; it is a warning then, not a cause.

Sources:
    cncf-tags/container-device-interface, SPEC.md: kind, devices; NVIDIA/nvidia-container-toolkit, internal/config.
"""

from __future__ import annotations

from dataclasses import replace

from gpustate.diagnosis import chain
from gpustate.diagnosis import remedies as remedies
from gpustate.errors import ProbeError
from gpustate.explain.causes import Cause, View, some
from gpustate.formats import cdi, toolkit_config

_TOOLKIT_CONFIG = toolkit_config.CONFIG_PATH


def as_before(view: View, *paths: str) -> str:
    """Where the bytes of files are kept that gpustate has written; empty when it has written none of them."""
    told = [
        f"; {path} as it was before gpustate: {kept}"
        if kept
        else f"; {path} did not exist before gpustate"
        for path, kept in view.clues.fields("kept", 2)
        if path in paths
    ]
    return "".join(told)


def named_in(view: View, evidence: str, otherwise: str = "") -> str:
    """The same for the files that a message names, or else for one that it may mean."""
    paths = [path for path, _ in view.clues.fields("kept", 2) if path in evidence]
    return as_before(view, *(paths or [otherwise]))


def _toolkit(view: View) -> str:
    # Programs that are not there come first; of those that fail, this may be why.
    if view.check is None or view.check.outcome == chain.NOT_APPLICABLE:
        return ""
    if "not installed" in view.broken:
        return ""
    for path, kind in view.clues.fields("no_file", 2):
        if path.endswith(_TOOLKIT_CONFIG):
            return f"{_TOOLKIT_CONFIG} is a {kind}, and every container that asks for a GPU fails by it"
    rows = view.clues.all("toolkit_config")
    try:
        toolkit_config.read_keys("\n".join(rows[1:]))  # the first row says that there is one
    except ProbeError as error:
        found = f"{error.place or _TOOLKIT_CONFIG}: {error.message}"
        return found + as_before(view, _TOOLKIT_CONFIG)
    return ""


def cdi_texts(view: View) -> dict[str, str]:
    """CDI specifications by path; those that are too long are left out."""
    lines = view.clues.fields("cdi_text", 2)
    return {
        path: "".join(f"{line}\n" for of, line in lines if of == number)
        for number, path in view.clues.fields("cdi_file", 2)
    }


def broken_specifications(view: View) -> dict[str, str]:
    """Path to what is wrong with it, of CDI specifications that nobody can read."""
    found: dict[str, str] = {}
    for path, text in cdi_texts(view).items():
        try:
            cdi.parse(text, place=path)
        except ProbeError as error:
            found[path] = error.message
    return found


def _judged_without(view: View, bad: dict[str, str]) -> chain.Check:
    good = replace(
        view.observed, cdi=tuple(one for one in view.observed.cdi if one.path not in bad)
    )
    return next(check for check in chain.evaluate(good) if check.name == "cdi")


def _broken_spec(view: View) -> str:
    if view.check is None or view.check.outcome == chain.NOT_APPLICABLE:
        return ""
    bad = broken_specifications(view)
    without = _judged_without(view, bad) if bad else None
    if without is None or not without.failed or "names what does not exist" in without.evidence:
        return ""
    return some(list(bad.values()))


def _no_file(view: View) -> str:
    if "no CDI specification" not in view.broken:
        return ""
    found = [
        f"{path} is a {kind}" for path, kind in view.clues.fields("no_file", 2) if "/cdi/" in path
    ]
    return f"{some(found)}: no runtime reads a specification from it" if found else ""


def no_results(view: View) -> str:
    """What is in the way of the folder for a validator's results; empty where nothing is."""
    rows = view.clues.fields("no_folder", 2)
    told = [
        f"{path} is {kind}, no folder: no validator writes its results there" for path, kind in rows
    ]
    return told[0] if told else ""


def _results(view: View) -> str:
    return no_results(view) if view.clues.has("results_wanted") else ""


CAUSES = (
    Cause("toolkit-configuration-broken", "toolkit", _toolkit, remedies.TOOLKIT_CONFIG, explains=False),
    Cause("cdi-not-a-file", "cdi", _no_file, remedies.CDI_NO_FILE),
    Cause("results-cannot-be-written", "cuda", _results, "move it away, then gpustate validate", explains=False),
    Cause("cdi-broken", "cdi", _broken_spec, remedies.CDI_BROKEN, state="cdi", explains=False),
)  # fmt: skip
