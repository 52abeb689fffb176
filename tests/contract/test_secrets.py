"""A secret in any parameter of type text of any state is in no output: terminal, JSON, HTML, Markdown, events, steps.

Every parameter is planted with values that are known to be secrets, as decrypted ones are, and with an address that
has a password in it. What a state makes of it, the real plan and the real steps, is made as far as placeholders
go; beside it stands a result that quotes the parameter wherever a result can quote something.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import shares

from gpustate import GpustateError, registry
from gpustate.cli import reports, resolve
from gpustate.cli.common import as_json
from gpustate.core import provenance
from gpustate.core.change import Change, Disruption, Plan
from gpustate.core.inventory import InventoryNode, VarsLayer
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.core.policy import Policy, build, parameters
from gpustate.core.state import AnyState, everything
from gpustate.formats import masking
from gpustate.ops import Block, compile_program
from gpustate.plan import document
from gpustate.remote import nodeprogram
from gpustate.testing.contract import Recorder

KEY = (Path(__file__).parents[1] / "data/openpgp/one.asc").read_text(encoding="utf-8")
MIRROR = {"origin": "mirror", "url": "https://mirror.example/x", "key": KEY}
BESIDE: dict[str, dict[str, Any]] = {
    "password": {"username": "ops"},
    "username": {"password": "pw"},
    "suite": {"components": ["main"]},
    "components": {"suite": "stable"},
}
#: In the forms that one or another parameter takes.
PLANTED = (
    "S3cr3t-planted-7f3a",
    "s3cr3t-planted-7f3a",
    "/s3cr3t/planted-7f3a",
    "s3cr3t-planted-7f3a.service",
    "s3cr3t.planted:53179",
    "5317.90121.7733",
    "531.79.12",
    "GPU-53c7e700-b1a2-4c3d-9e8f-5317a9012173",
    "5317901217335317901217335317901217335317",
)
PASSWORD = "S3cr3t-0f-an-address"
ADDRESS = f"https://ops:{PASSWORD}@mirror.example/x"
#: Keys of mappings that one or another parameter knows.
KEYS = (
    "NVreg_RegistryDwords", "nvidia-container-runtime.log-level", "LOG_FILE_NAME", "IMEX_CMD_LOG", "a.yaml",
    "12.4", "libnvidia-compute-580", "rack1", "nvidia-driver-open",
)  # fmt: skip


def texts_of(name: str) -> Iterator[str]:
    """Names of a state's parameters that hold a text somewhere."""
    for field, info in registry.get(name).model_fields.items():
        if field not in ("ensure", "only") and "str" in str(info.annotation):
            yield field


WORD = PLANTED[1]
FILES = {
    "counters.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, t.\n",
    "mig.yaml": f"version: v1\nmig-configs:\n  {WORD}:\n  - devices: all\n    mig-enabled: false\n",
    "token": "x",
    "key.asc": KEY,
}
#: Values of parameters that take one shape alone, with the secret in them.
PLANTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "dcgm": [("53.179.21.73", {"address": "53.179.21.73"})],
    "dcgm-exporter": [
        ("53.179.21.73", {"listen": "53.179.21.73:53179"}),
        (WORD, {"counters": "@FOLDER@/counters.csv"}),
    ],
    "device-plugin-config": [
        (WORD, {"configs": {WORD: {"version": "v1"}}, "default": WORD, "selected": WORD}),
        (WORD, {"config": {"version": "v1", "flags": {"mpsRoot": f"/{WORD}"}}}),
    ],
    "driver": [("531.79.12", {"locked": {"libnvidia-compute-580": "531.79.12"}, "version": "531.79.12"})],
    "driver-repository": [(WORD, {**MIRROR, "key": "@FOLDER@/key.asc"})],
    "mig": [(WORD, {"file": "@FOLDER@/mig.yaml", "config": WORD})],
    "toolkit-repository": [(WORD, {**MIRROR, "key": "@FOLDER@/key.asc"})],
    "vgpu-guest": [(WORD, {"token_file": "@FOLDER@/token"})],
}  # fmt: skip
SHAPED = {
    (name, field)
    for name, plants in PLANTS.items()
    for _, values in plants
    for field in values
    if field not in ("origin", "url", "version")
}
#: Parameters that hold no text of a person's own: few words, numbers, names of hardware; and the path of a real bundle.
NO_SECRET = {
    ("bundle", "file"),
    ("cuda-toolkit", "default"),
    ("cuda-toolkit", "releases"),
    ("cuda-toolkit", "versions"),
    ("driver-repository", "fingerprint"),
    ("driver-repository", "origin"),
    ("gds", "tools"),
    ("imex", "domains"),
    ("preflight", "gpus"),
    ("toolkit-repository", "fingerprint"),
    ("vfio", "devices"),
}

PARAMETERS = [(name, field) for name in sorted(registry.names()) for field in texts_of(name)]


def shapes(name: str, field: str, text: str) -> Iterator[Any]:
    annotation = str(registry.get(name).model_fields[field].annotation)
    if "apping[" not in annotation and "dict[" not in annotation:
        yield [text] if "tuple[" in annotation else text
        return
    for key in (*KEYS, text):
        yield {key: text}
        yield {key: [text]}
        yield {key: {"version": text}}
    yield {text: "x"}


def secrets_of(text: str) -> tuple[str, ...]:
    return (PASSWORD,) if text == ADDRESS else (text,)


def leaks(text: str, secrets: tuple[str, ...]) -> list[str]:
    return [one for one in secrets if one in text or json.dumps(one)[1:-1] in text]


def result_of(state: AnyState) -> tuple[NodeResult, tuple[Any, ...]]:
    """A result as far as placeholders give a plan, and one more that quotes every parameter; the steps."""
    said = parameters(state)
    words = json.dumps(said, ensure_ascii=False)
    quoted = StateResult(
        "quoted",
        Outcome.FAILED,
        Plan((Change("f", said, said, Disruption.REBOOT, words, f"/etc/{words}"),), (words,), words, (words,)),
        reason=words,
        evidence=words,
    )  # fmt: skip
    states, steps = [quoted], ()
    observed: dict[str, object] = {"quoted": said}
    try:
        seen = state.probe(Recorder())
        plan = everything(seen, state.desired(seen))
        states.append(
            StateResult(state.name, Outcome.PENDING, plan, reason=state.refuse(seen) or "")
        )
        steps = tuple(state.apply(seen, plan))
    except Exception:  # noqa: BLE001  placeholders need not make sense to every state
        pass
    node = NodeResult(
        "gpu1", NodeStatus.FAILED, words, states, observed=observed, notes=[words], checks=[said]
    )
    return node, steps


def outputs(state: AnyState, node: NodeResult) -> dict[str, str]:
    policy = Policy(state, groups={"g": {state.name: parameters(state)}})
    node.mask()
    plan = document.plan_document(policy, "policy.yml", [node], run="r", created="c")
    result = document.result_document(
        [node], run="r", created="c", verb="apply", summary="s", exit_code=1
    )
    where = InventoryNode(
        "gpu1", layers=(VarsLayer("node", "gpu1", {state.name: parameters(state)}, "hosts:1"),)
    )
    found = provenance.resolution(policy, where)
    texts = {
        kind: reports.text(plan, kind, diff=True, whole=True)
        for kind in ("text", "json", "html", "markdown")
    }
    return {
        **texts,
        "saved": json.dumps(plan),
        "result": json.dumps(result),
        "resolve json": as_json(provenance.as_data(found, found.values, "policy.yml")),
        "resolve": resolve._page(found, list(found.values)).plain(),
        "resolve why": resolve._why_page(list(found.values)).plain(),
    }


def sent(steps: tuple[Any, ...], secrets: tuple[str, ...]) -> dict[str, str]:
    """What goes to a node beside the steps that are removed once they have run."""
    program = compile_program((Block("x", (), steps),), {"a-rule": f"because {secrets[0]}"})
    gone = {f"step.{number}" for number in program.files.get("secrets", "").split()}
    kept = {name: text for name, text in program.files.items() if name not in gone}
    lock = nodeprogram.LockInfo(run="r", holder="me", pid=1, reason="apply", since=0, expires=1)
    labels = nodeprogram.archive(
        "r", type(program)(program.text, {}, program.steps), InventoryNode("gpu1"), lock, keep_lock=False
    )  # fmt: skip
    return {**kept, "program and labels": labels}


ACCEPTED: set[tuple[str, str]] = set()


@pytest.mark.parametrize(("name", "field"), PARAMETERS)
def test_a_secret_in_a_parameter_is_in_no_output(name: str, field: str) -> None:
    cls = registry.get(name)
    base = {**MIRROR, **BESIDE.get(field, {})} if name.endswith("-repository") else {}
    planted = False
    for text in (*PLANTED, ADDRESS):
        if planted and text != ADDRESS:
            continue
        secrets = secrets_of(text)
        masking.forget_all()
        if text != ADDRESS:
            masking.remember(text)
        for value in shapes(name, field, text):
            try:
                state = build(cls, {**base, field: value})
            except GpustateError as error:
                if leaks(masking.mask(str(error)), secrets):
                    pytest.fail(f"{text} in the error: {error}")
                continue
            ACCEPTED.add((name, field))
            planted = True
            check(state, text)
            break


def check(state: AnyState, text: str) -> None:
    """Nothing that is made of a state has the secret in a text."""
    secrets = secrets_of(text)
    node, steps = result_of(state)
    for kind, output in (*outputs(state, node).items(), *sent(steps, secrets).items()):
        assert not leaks(output, secrets), f"{text} in {kind}"


@pytest.mark.parametrize("name", sorted({name for name, _ in SHAPED}))
def test_a_secret_in_a_parameter_of_one_shape_is_in_no_output(name: str, tmp_path: Path) -> None:
    folder = tmp_path / WORD
    folder.mkdir()
    for file, text in FILES.items():
        (folder / file).write_text(text, encoding="utf-8")
    for text, values in PLANTS[name]:
        masking.forget_all()
        masking.remember(text)
        given = json.loads(json.dumps(values).replace("@FOLDER@", str(folder)))
        check(build(registry.get(name), given), text)


def test_most_parameters_took_a_secret() -> None:
    """Counted, not assumed; another process of the same run may have had the others."""
    for name, field in sorted(set(PARAMETERS) - ACCEPTED):
        test_a_secret_in_a_parameter_is_in_no_output(name, field)
    shares.TAKEN["secrets planted"] = (
        f"{len(ACCEPTED)} of {len(PARAMETERS)} parameters of type text took one"
    )
    assert set(PARAMETERS) - ACCEPTED == {*SHAPED, *NO_SECRET}
    assert {
        ("driver-repository", "url"),
        ("driver-repository", "password"),
        ("dcgm-exporter", "contents"),
    } <= ACCEPTED
