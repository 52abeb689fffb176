"""Causes at the checks ``toolkit``, ``cdi`` and ``cuda``: a file exists and cannot be parsed or used.

The remedy for a missing file may not help here: a folder in the place of a specification prevents writing a
new one. If gpustate has ever written the file, the node keeps its original content, and the evidence names
where.

Surprising: runtimes skip a CDI specification that they cannot read, or of which one entry is not valid, without a
message. One that was cut may be valid, and lack the edits that all its devices need. That does no harm while another one names the same devices, so it is a warning then and no cause.

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


def originals_of(view: View, *paths: str) -> str:
    """Where the originals of files are that gpustate has written; empty if it has written none of them."""
    return "".join(
        f"; original of {path}: {copy}" if copy else f"; {path} did not exist before gpustate"
        for path, copy in view.clues.fields("kept", 2)
        if path in paths
    )


def originals_named_in(view: View, evidence: str, otherwise: str = "") -> str:
    """The same for the files that a message names, or else for the one that it may mean."""
    paths = [path for path, _ in view.clues.fields("kept", 2) if path in evidence]
    return originals_of(view, *(paths or [otherwise]))


def toolkit_text(view: View) -> str:
    """The toolkit's configuration; its first row only marks that the file exists."""
    return "\n".join(view.clues.all("toolkit_config")[1:])


def _toolkit(view: View) -> str:
    # Missing programs come first; for one that fails, this may be the reason.
    if view.check is None or view.check.outcome == chain.NOT_APPLICABLE:
        return ""
    if "not installed" in view.broken:
        return ""
    for path, kind in view.clues.fields("no_file", 2):
        if path.endswith(_TOOLKIT_CONFIG):
            return f"{_TOOLKIT_CONFIG} is a {kind}, so every container that requests a GPU fails"
    try:
        toolkit_config.read_keys(toolkit_text(view))
    except ProbeError as error:
        evidence = f"{error.place or _TOOLKIT_CONFIG}: {error.message}"
        return evidence + originals_of(view, _TOOLKIT_CONFIG)
    return ""


def cdi_texts(view: View) -> dict[str, str]:
    """CDI specifications by path; very long ones are left out."""
    lines = view.clues.fields("cdi_text", 2)
    return {
        path: "".join(f"{line}\n" for of, line in lines if of == number)
        for number, path in view.clues.fields("cdi_file", 2)
    }


def broken_specifications(view: View) -> dict[str, str]:
    """CDI specifications that runtimes ignore as a whole, or that are cut: path to error."""
    errors: dict[str, str] = {}
    used: dict[str, cdi.Spec] = {}
    for path, text in cdi_texts(view).items():
        try:
            spec = cdi.parse(text, place=path)
        except ProbeError as error:
            errors[path] = error.message
            continue
        if spec.refused:
            errors[path] = f"container runtimes ignore {path}: {spec.refused[0]}"
        elif spec.kind == cdi.KIND and spec.devices:
            used[path] = spec
    every = any(cdi.ALL in spec.devices for spec in used.values())
    for path, spec in used.items():
        lacking = [] if every else ["device all"]
        if spec.generated and not cdi.lists_library(spec):
            lacking.append("driver library")
        if lacking:
            errors[path] = f"{path} is incomplete: no {', no '.join(lacking)}"
    return errors


def _judged_without(view: View, bad: dict[str, str]) -> chain.Check:
    good = replace(
        view.observed, cdi=tuple(spec for spec in view.observed.cdi if spec.path not in bad)
    )
    return next(check for check in chain.evaluate(good) if check.name == "cdi")


def _broken_spec(view: View) -> str:
    if view.check is None or view.check.outcome == chain.NOT_APPLICABLE:
        return ""
    bad = broken_specifications(view)
    without = _judged_without(view, bad) if bad else None
    if without is None or not without.failed or "names missing files" in without.evidence:
        return ""
    return some(list(bad.values()))


def _no_file(view: View) -> str:
    if "no CDI specification" not in view.broken:
        return ""
    problems = [
        f"{path} is a {kind}" for path, kind in view.clues.fields("no_file", 2) if "/cdi/" in path
    ]
    return f"{some(problems)}: no runtime can read a specification from it" if problems else ""


def no_results(view: View) -> str:
    """What prevents creating the folder for a validator's results; empty if nothing does."""
    for path, kind in view.clues.fields("no_folder", 2):
        return f"{path} is {kind}, not a folder: no validator can write its results there"
    return ""


CAUSES = (
    Cause("toolkit-configuration-broken", "toolkit", _toolkit, remedies.TOOLKIT_CONFIG, explains=False, harmless_if_tested=True),
    Cause("cdi-not-a-file", "cdi", _no_file, remedies.CDI_NO_FILE),
    Cause("results-cannot-be-written", "cuda", lambda v: no_results(v) if v.clues.has("results_wanted") else "", f"move it away, then: {remedies.VALIDATE}", explains=False),
    Cause("cdi-broken", "cdi", _broken_spec, remedies.CDI_BROKEN, state="cdi", explains=False, harmless_if_tested=True),
)  # fmt: skip
