from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from gpustate.errors import LabError, UsageError
from gpustate_lab import api, checks, paths
from gpustate_lab.images import IMAGES
from gpustate_lab.record import RECORD_FORMAT
from gpustate_lab.requirements import PROGRAMS
from gpustate_lab.sim.hardware import FAULTS
from gpustate_lab.sim.models import models
from gpustate_lab.spec import KUBERNETES_VERSIONS, LabSpec
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
    def up(spec: LabSpec, say: object, toolkits: tuple[str, ...]) -> NoReturn:
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
    with pytest.raises(
        LabError,
        match=r"lab 'x' does not exist \(labs: demo\); choose one of them with --name, or create it: gpustate lab up x$",
    ):
        api.find("x")
    with pytest.raises(LabError, match=r"lab demo has no node 'gpu7'; choose one of gpu1"):
        api.find("demo").node("gpu7")


@pytest.mark.parametrize("text", ["", "[]", '{"format": "gpustate.lab-record/9"}', '{"format": 1}'])
def test_a_damaged_record_is_named_with_its_path(labs: Path, text: str) -> None:
    (labs / "demo").mkdir()
    (labs / "demo" / "lab.json").write_text(text)
    with pytest.raises(LabError, match=r"demo/lab\.json: "):
        api.labs()


def run(*words: str) -> str:
    result = CliRunner().invoke(group, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def help_of(*words: str) -> str:
    return " ".join(run(*words, "--help").split())


def test_a_mistyped_lab_is_answered_with_the_nearest_one(labs: Path) -> None:
    record(labs, "demo")
    record(labs, "other")
    with pytest.raises(LabError, match=r"\(labs: demo, other\); did you mean 'demo'$"):
        api.find("dmeo")


def test_down_of_a_lab_that_is_not_there_lists_those_that_are(
    labs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "require_root", lambda: None)
    absent = "nothing to remove: lab 'dmeo' does not exist"
    assert run("down", "dmeo") == f"{absent} (labs: none)\n"
    record(labs, "demo")
    assert run("down", "dmeo") == f"{absent} (labs: demo); did you mean 'demo'\n"
    assert (labs / "demo").exists()


@pytest.mark.parametrize("verb", ["up", "down", "list"])
def test_two_names_of_a_lab_are_refused(verb: str) -> None:
    with pytest.raises(UsageError, match="two names of a lab: a and --name b; give only one"):
        CliRunner().invoke(group, [verb, "a", "--name", "b"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "lab"),
        (["demo"], "demo"),
        (["--name", "demo"], "demo"),
        (["demo", "--name", "demo"], "demo"),
    ],
)
def test_the_name_of_a_lab_is_an_argument_or_an_option(
    words: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(api, "down", lambda given, say: removed.append(given) or ["it"])
    run("down", *words)

    def up(spec: LabSpec, say: object, toolkits: tuple[str, ...]) -> NoReturn:
        raise LabError(spec.name)

    monkeypatch.setattr(api, "up", up)
    with pytest.raises(LabError, match=f"^{name}$"):
        CliRunner().invoke(group, ["up", *words], catch_exceptions=False)
    assert removed == [name]


@pytest.mark.parametrize("words", [["down", ""], ["down", "--name", ""], ["list", ""]])
def test_an_empty_name_is_an_error_and_not_the_default(labs: Path, words: list[str]) -> None:
    record(labs, "lab")
    with pytest.raises(LabError, match="invalid lab name ''"):
        CliRunner().invoke(group, words, catch_exceptions=False)
    assert (labs / "lab").exists()


def test_a_name_after_kubernetes_is_no_version() -> None:
    with pytest.raises(UsageError, match=r"not a version; .*: gpustate lab up demo --kubernetes$"):
        CliRunner().invoke(group, ["up", "--kubernetes", "demo"], catch_exceptions=False)


def test_an_unknown_verb_is_answered_as_everywhere() -> None:
    with pytest.raises(UsageError, match=r"no verb 'dwn'; did you mean 'down'; see: .* --help$"):
        CliRunner().invoke(group, ["dwn"], catch_exceptions=False)


def test_faults_are_listed_without_a_node() -> None:
    text = run("fault", "--list")
    assert [name for name in FAULTS if f"{name} " not in text] == []
    assert "gpustate lab fault --list" in help_of("up")


def test_help_names_all_values_of_options_and_all_requirements() -> None:
    text = help_of("up").replace("- ", "-")
    expected = [*IMAGES, *models(), *KUBERNETES_VERSIONS, "kube-apiserver", "nfd-gc", "kwok"]
    assert [value for value in expected if value not in text] == []
    assert all(recipe.summary for recipe in IMAGES.values())
    requirements = help_of().replace("- ", "-")
    assert [program for program in PROGRAMS if program not in requirements] == []


def test_help_of_down_names_the_default_and_that_it_does_not_ask() -> None:
    assert "without asking for confirmation" in help_of("down")
    assert "Without NAME, the lab called lab is removed." in help_of("down")


def test_help_of_list_names_every_field(labs: Path) -> None:
    record(labs, "demo")
    document = json.loads(listed("-o", "json"))
    entry = document["labs"][0]
    fields = {*document, *entry, *entry["nodes"][0]} - {"format"}
    assert [field for field in fields if field not in help_of("list")] == []
