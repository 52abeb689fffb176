"""Which options the handler gets, on files as images ship them: dumps are those of the built-in defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from containerdcorpus import parts

from gpustate.errors import RefusedError
from gpustate.formats.containerd import Edit, Files, Handler, disabled_cri, plan_edit, plan_removal
from gpustate.formats.toml_scan import parse

DATA = Path(__file__).parents[2] / "data" / "containerd"
#: Release to its built-in runtimes and where its dump has them.
DUMPS = {
    "1.7.24": ('plugins."io.containerd.grpc.v1.cri"', ""),
    "2.1.9": (
        "plugins.'io.containerd.cri.v1.runtime'",
        'runtimes.runc={runtime_type="io.containerd.runc.v2",options={SystemdCgroup=false}}\n',
    ),
}
HANDLER = Handler()
NAMES = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")


def planned(text: str, version: str, default: str, handler: Handler = HANDLER) -> Edit:
    """Plan on a file; what containerd makes of it is its built-in part alone, and its default runtime."""
    table, built_in = DUMPS[version]
    dump = f'[{table}.containerd]\ndefault_runtime_name = "{default}"\n{built_in}'
    return plan_edit(Files(text), handler, containerd_version=version, dump_text=dump)


def written(edit: Edit) -> dict[str, Any]:
    """The handler's table, wherever the edit puts it; empty where it writes none."""
    for text in edit.files.values():
        plugins = parse(text or "", "").get("plugins", {})
        for name in NAMES:
            found = plugins.get(name, {}).get("containerd", {}).get("runtimes", {}).get("nvidia")
            if found:
                return dict(found)
    return {}


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("eks-al2023-v2-gpu", "1.7.24"),
        ("eks-al2023-v2-gpu", "2.1.9"),
        ("eks-al2023-v3-gpu", "2.1.9"),
        ("eks-al2-gpu-v2", "1.7.24"),
        ("bottlerocket-v1-nvidia", "1.7.24"),
        ("bottlerocket-v2-nvidia", "1.7.24"),
        ("bottlerocket-v2-nvidia", "2.1.9"),
        ("bottlerocket-v3-nvidia", "2.1.9"),
    ],
)
def test_a_lone_handlers_own_options_stay(name: str, version: str) -> None:
    edit = planned(parts(name)["config.toml"], version, "nvidia")
    if not edit.files:  # the same program: nothing to do
        assert "eks" in name
        return
    table = written(edit)
    assert table["options"]["SystemdCgroup"] is True
    assert table["base_runtime_spec"].startswith("/etc/containerd/")


def test_a_default_handler_with_systemds_cgroups_keeps_them_beside_a_runc_without() -> None:
    cri = 'plugins."io.containerd.grpc.v1.cri".containerd'
    runtime = '\nruntime_type = "io.containerd.runc.v2"\n'
    text = (
        f'version = 2\n[{cri}]\ndefault_runtime_name = "nvidia"\n[{cri}.runtimes.runc]{runtime}'
        f'[{cri}.runtimes.nvidia]{runtime}[{cri}.runtimes.nvidia.options]\nBinaryName = "/opt/x"\nSystemdCgroup = true\n'
    )
    assert written(planned(text, "1.7.24", "nvidia"))["options"] == {
        "BinaryName": "/usr/bin/nvidia-container-runtime",
        "SystemdCgroup": True,
    }


def test_options_are_read_whatever_their_case_and_written_in_containerds() -> None:
    table = written(planned(parts("kubespray-v2")["config.toml"], "1.7.24", "runc"))
    assert table["options"] == {
        "BinaryName": "/usr/bin/nvidia-container-runtime",
        "SystemdCgroup": True,
    }
    assert table["base_runtime_spec"] == "/etc/containerd/cri-base.json"


@pytest.mark.parametrize(
    "name", ["aks-containerd2-version2-gpu", "aks-containerd2-unversioned-gpu", "nixos-both-names"]
)
def test_a_file_with_names_of_version_3_is_extended_in_them(name: str) -> None:
    edit = planned(parts(name)["config.toml"], "2.1.9", "runc")
    assert written(edit)["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    assert any("io.containerd.cri.v1.runtime" in (text or "") for text in edit.files.values())
    both = "".join(text or "" for text in edit.files.values())
    assert both.count("grpc.v1.cri") == parts(name)["config.toml"].count("grpc.v1.cri")


def test_a_file_without_version_and_with_names_of_version_2_is_read_from_2_3_on() -> None:
    text = parts("unversioned-v2-names")["config.toml"]
    with pytest.raises(RefusedError, match="write version = 2 at its top"):
        planned(text, "2.1.9", "runc")
    dump = (DATA / "2.3.4-config-default.toml").read_text()
    edit = plan_edit(Files(text), HANDLER, containerd_version="2.3.4", dump_text=dump)
    (new,) = edit.files.values()
    assert (new or "").startswith(
        text
    )  # in place: a drop-in's version would be newer than the root's
    assert written(edit)["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"


def test_runc_is_added_where_files_name_others_and_containerd_1_would_not_serve_pods() -> None:
    text = parts("kata-without-runc")["config.toml"]
    edit = planned(text, "1.7.24", "runc")
    (new,) = edit.files.values()
    runtimes = parse(new or "", "")["plugins"]["io.containerd.grpc.v1.cri"]["containerd"][
        "runtimes"
    ]
    assert runtimes.keys() == {"kata-qemu", "nvidia", "runc"}
    assert any("the files define runtimes but not runc" in note for note in edit.notes)
    # containerd 2 keeps its own.
    assert "runtimes.runc]" not in "".join(
        filter(None, planned(text, "2.1.9", "runc").files.values())
    )


def test_a_runc_added_beside_an_inline_table_goes_with_the_handler() -> None:
    text = (
        'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'
        "containerd = { runtimes = { crun = { options = { SystemdCgroup = true } } } }\n"
    )
    edit = planned(text, "1.7.24", "runc")
    (changed,) = (new for new in edit.files.values() if new is not None)
    assert "runc = {" in changed
    removal = plan_removal(Files(changed), HANDLER)
    assert list(removal.files.values()) == [text]


@pytest.mark.parametrize("version", DUMPS)
def test_a_default_runtime_that_no_file_defines_is_refused_unless_the_handler_takes_its_place(
    version: str,
) -> None:
    text = parts("default-nope")["config.toml"]
    with pytest.raises(RefusedError, match="default_runtime_name is nope, which no file defines"):
        planned(text, version, "nope")
    assert planned(text, version, "nope", Handler(default=True)).files


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], ""),
        (["io.containerd.internal.v1.opt"], ""),
        (["cri"], "cri"),
        (["io.containerd.grpc.v1.cri"], "io.containerd.grpc.v1.cri"),
        (["a", "io.containerd.cri.v1.runtime"], "io.containerd.cri.v1.runtime"),
        ("cri", ""),
    ],
)
def test_a_disabled_cri_is_known_by_each_of_its_names(names: object, found: str) -> None:
    assert disabled_cri({"disabled_plugins": names}) == found


def test_a_templates_placeholder_for_the_default_runtime_is_not_judged() -> None:
    text = parts("default-nope")["config.toml"].replace("nope", "${RUNTIME}")
    assert planned(text, "1.7.24", "runc").files
