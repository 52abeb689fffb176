from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from gpustate.errors import LabError, UsageError
from gpustate_lab import api, paths
from gpustate_lab.record import RECORD_FORMAT
from gpustate_lab.sim.hardware import FAULTS
from gpustate_lab.sim.models import models
from gpustate_lab.spec import LabSpec
from gpustate_lab.verb import group


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(paths.STATE_VARIABLE, str(tmp_path))
    return tmp_path


def record(labs: Path, name: str, **changes: object) -> None:
    text = {
        "format": RECORD_FORMAT,
        "spec": {"name": name, "nodes": 1, "images": ["debian12"], "gpus": ["none"], "faults": []},
        "subnet": "10.217.0.0/24",
        "tag": "00000000",
        "complete": True,
        "layers": {"gpu1": []},
        "sources": {"gpu1": {}},
    }
    (labs / name).mkdir()
    (labs / name / "lab.json").write_text(json.dumps({**text, **changes}))


def listed(*arguments: str) -> str:
    result = CliRunner().invoke(group, ["list", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_list_without_a_lab_says_how_to_make_one(labs: Path) -> None:
    assert listed() == "no labs; create one: gpustate lab up\n"
    assert json.loads(listed("-o", "json")) == {
        "format": "gpustate.lab/1",
        "inventory": None,
        "kubeconfig": None,
        "programs": None,
        "labs": [],
    }


def test_images_and_gpus_that_are_given_twice_are_all_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def up(spec: LabSpec, say: object) -> NoReturn:
        raise LabError(f"{spec.images} {spec.gpus}")

    monkeypatch.setattr(api, "up", up)
    words = ["up", "--image", "debian12", "--image", "ubuntu2204,debian13", "--gpus", "none"]
    with pytest.raises(LabError) as caught:
        CliRunner().invoke(group, words, catch_exceptions=False)
    assert caught.value.message == "('debian12', 'ubuntu2204', 'debian13') ('none',)"


def test_the_inventory_on_top_is_that_of_the_only_lab(labs: Path) -> None:
    record(labs, "demo")
    document = json.loads(listed("-o", "json"))
    assert document["inventory"] == str(labs / "demo" / "inventory.yml")
    assert document["labs"][0]["nodes"][0]["address"] == "10.217.0.11"
    assert document["labs"][0]["running"] is False
    assert document["labs"][0]["simulated"] is True


def test_with_several_labs_the_inventory_on_top_is_that_of_the_default_name(labs: Path) -> None:
    record(labs, "demo")
    record(labs, "other")
    assert json.loads(listed("-o", "json"))["inventory"] is None
    record(labs, "lab")
    assert json.loads(listed("-o", "json"))["inventory"] == str(labs / "lab" / "inventory.yml")


def test_the_text_says_that_gpus_are_simulated(labs: Path) -> None:
    record(labs, "demo")
    assert "GPUs simulated" in listed()
    assert "gpu1  10.217.0.11  debian12  none  off" in listed()


def test_a_lab_that_is_not_there_names_those_that_are(labs: Path) -> None:
    record(labs, "demo")
    with pytest.raises(LabError, match=r"lab 'x' does not exist \(labs: demo\); name one of these"):
        api.find("x")
    with pytest.raises(LabError, match=r"lab demo has no node 'gpu7'; choose one of gpu1"):
        api.find("demo").node("gpu7")


@pytest.mark.parametrize("text", ["", "[]", '{"format": "gpustate.lab-record/9"}', '{"format": 1}'])
def test_a_damaged_record_is_named_with_its_path(labs: Path, text: str) -> None:
    (labs / "demo").mkdir()
    (labs / "demo" / "lab.json").write_text(text)
    with pytest.raises(LabError, match=r"demo/lab\.json: "):
        api.labs()


def test_a_lab_has_one_name(labs: Path) -> None:
    record(labs, "demo")
    run = CliRunner().invoke
    for verb in ("up", "down"):
        with pytest.raises(UsageError, match="two labs are named: a and --name b; name one"):
            run(group, [verb, "a", "--name", "b"], catch_exceptions=False)
    gone = run(group, ["down", "x"], catch_exceptions=False)
    assert gone.output == "nothing to remove: lab x does not exist (labs: demo)\n"


def test_help_has_every_model_and_fault() -> None:
    shown = CliRunner().invoke(group, ["up", "--help"]).output
    assert ", ".join(models()) in " ".join(shown.split())
    listed = CliRunner().invoke(group, ["fault", "--list"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == list(FAULTS)
