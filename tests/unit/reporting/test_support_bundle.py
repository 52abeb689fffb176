"""The archive and the answers of nodes: fixed order, safe names, limits."""

from __future__ import annotations

import base64
import io
import tarfile

import pytest

from gpustate.core.queries import Answer
from gpustate.reporting import cluster_files, node_files, support_bundle
from gpustate.reporting.node_files import CollectQuery, Item
from gpustate.reporting.support_bundle import Archive


def answer(*lines: str) -> Answer:
    return Answer(0, "\n".join(lines).encode())


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_items_are_read_with_the_status_of_their_commands() -> None:
    lines = (f"item pci {coded('a')}", f"item smi {coded(chr(10).join(('one', 'two', '127')))}")
    found = CollectQuery("", 5).parse(answer(*lines, "absent run/r1", "complete"))
    assert found.items == (Item("pci", "", 1), Item("smi", "one\ntwo", 127))
    assert (found.absent, found.complete) == (("run/r1",), True)
    assert not CollectQuery("", 5).parse(answer(*lines)).complete


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a//b", ".", "a b", "a\x1b", ""])
def test_a_name_that_leaves_its_folder_is_ignored(name: str) -> None:
    found = CollectQuery("", 5).parse(answer(f"item {name} {coded('x')}", "complete"))
    assert not [one for one in found.items if one.name == name]


def test_a_long_item_says_that_it_is_cut() -> None:
    text = "x" * (node_files.ITEM_BYTES - 2) + "\n0"
    (item,) = CollectQuery("", 5).parse(answer(f"item log {coded(text)}")).items
    assert item.cut


def test_the_same_files_make_the_same_archive_for_the_owner_only() -> None:
    first, second = Archive("t"), Archive("t")
    first.add_text("b", "x")
    first.add_data("a", {"k": 1})
    second.add_data("a", {"k": 1})
    second.add_text("b", "x")
    assert first.pack() == second.pack()
    with tarfile.open(fileobj=io.BytesIO(first.pack())) as tar:
        assert tar.getnames() == ["gpustate-support/a", "gpustate-support/b"]
        assert {one.mode for one in tar} == {0o600}


def test_a_bundle_that_grows_too_large_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(support_bundle, "TOTAL_BYTES", 10)
    archive = Archive("t")
    archive.add_text("a", "x" * 8)
    archive.add_text("b", "x" * 8)
    assert list(archive.files) == ["a"]
    assert [path for path, _ in archive.missing] == ["b"]


def test_folders_are_safe_and_unique() -> None:
    found = support_bundle.folders(["gpu1", "a/b", "a_b", "..", "\u00fc"])
    assert len(set(found.values())) == 5
    assert all("/" not in one and not one.startswith(".") for one in found.values())


def test_pods_and_nodes_are_told_without_what_may_be_secret() -> None:
    env = {"env": [{"name": "KEY", "value": "hunter2"}], "args": ["hunter2"], "image": "x:1"}
    pod = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [env]}}
    shown = cluster_files.pod_data(pod)
    assert shown["images"] == ["x:1"]
    assert "hunter2" not in str(shown)
    node = {"metadata": {"name": "n", "managedFields": [1], "annotations": {"a": "b"}}}
    assert cluster_files.node_data(node)["metadata"] == {"name": "n", "annotations": {"a": "b"}}
