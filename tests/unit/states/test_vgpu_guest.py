"""vGPU guest licensing, in memory; the token never shows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from goingback import rolled_back
from pydantic import ValidationError

from gpustate import Disruption, PolicyError, ops
from gpustate.core.encode import plain
from gpustate.states.vgpu_guest import CONF_PATH, TEMPLATE_PATH, TOKEN_PATH, UNIT, VgpuLicensed
from gpustate.testing import FakeNode, converge

STEPLESS = {"vgpu-guest": "its default names neither token nor server"}

SECRET = "eyJhbGciOi.very-secret.token"
TEMPLATE = "# FeatureType\nFeatureType=0\n"
CONF = "# site\nEnableUI=FALSE\nFeatureType=0\n"
VGPU = "        Virtualization Mode               : VGPU\n"

#: What is compared after a rollback: see :mod:`goingback`.
GOES_BACK = {"vgpu-guest": "gridd.conf; a token is a secret and is put again"}


class Guest(FakeNode):
    """A machine whose licence comes when gridd is restarted with a token."""

    def __init__(self, **more: Any) -> None:
        self.mode, self.owner, self.program = 0o744, 0, ""
        settings: dict[str, Any] = {
            "units": {UNIT: "active"},
            "files": {CONF_PATH: CONF, TEMPLATE_PATH: TEMPLATE},
            "shell": {"sha256sum": lambda _: (0, self._said())},
            "runs": {"wait for the licence": lambda _: None},
            "answers": {"FileStats": lambda _: self._stat()},
        }
        super().__init__(**{**settings, **more})

    def _stat(self) -> dict[str, Any]:
        from gpustate.core.file_queries import FileStat

        if TOKEN_PATH not in self.files:
            return {}
        return {TOKEN_PATH: FileStat("file", self.mode, self.owner, 0, 1)}

    def _said(self) -> str:
        token = self.files.get(TOKEN_PATH)
        digest = f"token={hashlib.sha256(token.encode()).hexdigest()[:16]}\n" if token else ""
        status = "Licensed (Expiry: 2026-1-1 0:0:0 GMT)" if token == SECRET else "Unlicensed"
        return f"{self.program}{digest}{VGPU}        License Status                    : {status}\n"


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "client.tok"
    path.write_text(SECRET)
    return str(path)


def test_the_token_is_put_merged_and_the_machine_is_licensed(token: str) -> None:
    node = Guest()
    first, second = converge(VgpuLicensed(token_file=token), node)
    assert first.disruption is Disruption.RESTART
    assert not second
    assert node.files[TOKEN_PATH] == SECRET
    assert "EnableUI=FALSE\n" in node.files[CONF_PATH]
    assert "\nFeatureType=1\n" in node.files[CONF_PATH]
    put = next(
        step for step in node.done if isinstance(step, ops.PutText) and step.path == TOKEN_PATH
    )
    assert (put.mode, put.secret) == (0o744, True)


def test_removal_gives_the_file_back_to_the_byte_and_takes_the_token(token: str) -> None:
    node = Guest()
    state = VgpuLicensed(token_file=token, server_address="10.0.0.1")
    list(converge(state, node))
    node.files[CONF_PATH] += "Added=byhand\n"
    *_, last = converge(VgpuLicensed(token_file=token, ensure="absent"), node)
    assert not last
    assert node.files == {CONF_PATH: CONF + "Added=byhand\n", TEMPLATE_PATH: TEMPLATE}


def test_a_file_that_was_made_from_the_template_goes_as_a_whole(token: str) -> None:
    node = Guest(files={TEMPLATE_PATH: TEMPLATE})
    list(converge(VgpuLicensed(token_file=token), node))
    assert node.files[CONF_PATH].startswith("# Written by gpustate")
    list(converge(VgpuLicensed(ensure="absent"), node))
    assert node.files == {TEMPLATE_PATH: TEMPLATE}


def test_a_token_that_anybody_may_change_is_mended(token: str) -> None:
    node = Guest()
    state = VgpuLicensed(token_file=token)
    list(converge(state, node))
    node.mode = 0o777
    (plan,) = converge(state, node, rounds=0)
    assert plan.fields == {"token_mode"}
    node.mode, node.owner = 0o744, 1000
    (plan,) = converge(state, node, rounds=0)
    assert plan.fields == {"token_mode"}
    assert "owner 1000:0" in str(plan.changes)


def test_neither_plan_nor_parameters_nor_labels_hold_the_secret(token: str) -> None:
    state, node = VgpuLicensed(token_file=token), Guest()
    observed = state.probe(node)
    plan = state.plan(observed)
    written = json.dumps(
        [plain(observed), [str(change) for change in plan.changes], state.model_dump()]
    )
    labels = [step.label for step in state.apply(observed, plan)]
    assert SECRET not in written + repr(state) + "".join(labels)


def test_nothing_is_done_where_nothing_is_asked() -> None:
    (plan,) = converge(VgpuLicensed(), Guest(), rounds=0)
    assert not plan
    assert "nothing to do" in plan.notes[0]


def test_a_machine_without_gridd_is_refused(token: str) -> None:
    state = VgpuLicensed(token_file=token)
    assert "is not installed: it comes with" in (state.refuse(state.probe(Guest(units={}))) or "")


def test_a_gridd_without_its_unit_is_not_called_missing(token: str) -> None:
    state, node = VgpuLicensed(token_file=token), Guest(units={}, files={CONF_PATH: CONF})
    node.program = "program\n"
    assert (state.refuse(state.probe(node)) or "").startswith(
        "nvidia-gridd is installed without nvidia-gridd.service"
    )


@pytest.mark.parametrize("content", [None, b"\x00\x01", b"\xff\xfe", b"x" * (2 << 20)])
def test_a_token_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "client.tok"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PolicyError, match=r"client\.tok"):
        VgpuLicensed(token_file=str(path))


@pytest.mark.parametrize(
    "parameters",
    [{"feature_type": 3}, {"server_address": "a b"}, {"server_port": 0}, {"wait_s": 0}],
)
def test_wrong_parameters_are_errors_before_any_node_is_reached(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        VgpuLicensed(**parameters)


def test_a_rollback_restores_the_bytes(token: str) -> None:
    # The service comes with the driver; a removal leaves it enabled.
    rolled_back(Guest(), None, VgpuLicensed(token_file=token), but=("enabled",))
    one = VgpuLicensed(token_file=token)
    rolled_back(Guest(), one, VgpuLicensed(token_file=token, server_address="10.0.0.1"))
