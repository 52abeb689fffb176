"""What fragments find out together: the real sh over a stand-in for systemctl that counts its calls."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpustate.core import shared_probes
from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import Shell, Units
from gpustate.probes import module_files
from gpustate.remote.batch import AnswerReader, make_batch

SYSTEMCTL = r"""#!/bin/sh
echo "$1" >>@HERE@/calls
verb=$1; while [ "$1" != -- ]; do shift; done; shift
case $verb in
  list-unit-files) for u; do case $u in @FILES@) echo "$u enabled enabled";; esac; done;;
  show) f=; for u; do
    echo "$u" >>@HERE@/shown; [ -z "$f" ] || echo; f=1
    printf 'LoadState=loaded\nExecStart={ argv[]=/usr/bin/%s }\nId=%s\nUnitFileState=disabled\n' "$u" "$u"
  done;;
esac
"""


class Host:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "run").mkdir()

    def systemctl(self, files: str, *running: str) -> None:
        text = SYSTEMCTL.replace("@HERE@", str(self.folder))
        program = self.folder / "systemctl"
        program.write_text(text.replace("@FILES@", files))
        program.chmod(0o755)
        for unit in running:
            (self.folder / "cgroup/system.slice" / unit).mkdir(parents=True)

    def said(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().split() if path.exists() else []

    def run(self, script: str) -> bytes:
        script = script.replace("/run/systemd/system", str(self.folder / "run"))
        script = script.replace("/sys/fs/cgroup", str(self.folder / "cgroup"))
        environment = {"PATH": f"{self.folder}:/usr/bin:/bin", "G": str(self.folder)}
        return subprocess.run(
            ["sh"], input=script.encode(), capture_output=True, env=environment, check=False
        ).stdout

    def units(self, *queries: Units) -> list[dict[str, tuple[str, str]]]:
        batch = make_batch(InventoryNode("gpu1"), queries, "nonce")
        reader = AnswerReader(batch)
        reader.feed(self.run(batch.script))
        found = [query.parse(one) for query, one in zip(queries, reader.answers(), strict=True)]
        return [{k: (u.load_state, u.unit_file_state) for k, u in one.items()} for one in found]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_only_units_that_are_there_are_shown_and_all_are_known(host: Host) -> None:
    host.systemctl("basic.target|a.service", "gone.service")
    first, second = host.units(
        Units(("a.service", "none.service")), Units(("gone.service", "b@1.service", "a.service"))
    )
    assert first == {"a.service": ("loaded", "enabled"), "none.service": ("not-found", "")}
    assert second == {
        "gone.service": ("loaded", "disabled"),
        "b@1.service": ("loaded", "disabled"),
        "a.service": ("loaded", "enabled"),
    }
    assert host.said("calls") == ["list-unit-files", "show"]
    assert "none.service" not in host.said("shown")


def test_a_list_that_cannot_be_whole_is_not_believed(host: Host) -> None:
    host.systemctl("nothing")
    (found,) = host.units(Units(("a.service", "b.service")))
    assert {load for load, _ in found.values()} == {"loaded"}
    assert host.said("shown") == ["a.service", "b.service"]


def test_a_fragment_alone_asks_for_its_unit_itself(host: Host) -> None:
    host.systemctl("basic.target")
    said = host.run(f"cat <<END\n{shared_probes.show_unit('x-y.service')}\nEND\n")
    assert b"argv[]=/usr/bin/x-y.service" in said
    assert host.said("calls") == ["show"]


def test_what_waits_goes_before_what_is_found_out_for_all(host: Host) -> None:
    queries = (Units(("a.service", "b.service")), Shell("echo waited", waits=True))
    script = make_batch(InventoryNode("gpu1"), queries, "nonce").script
    assert script.index("echo waited") < script.index("list-unit-files")


def kept(host: Host, key: str, command: str) -> str:
    text = f"{shared_probes.KEPT}\nsay() {{ {command}; }}\nkept name '{key}' say; echo \"ended $?\""
    return host.run(text).decode()


def test_an_answer_is_kept_as_long_as_the_key_is_the_same(host: Host) -> None:
    assert kept(host, "one", "echo a; echo b") == "a\nb\nended 0\n"
    assert kept(host, "one", "echo c") == "a\nb\nended 0\n"
    assert kept(host, "two", "echo c") == "c\nended 0\n"
    assert kept(host, "three", ":") == "ended 0\n"
    assert kept(host, "three", "echo d") == "ended 0\n"
    assert (host.folder / "cache/name").stat().st_mode & 0o777 == 0o600


def test_an_answer_of_a_command_that_fails_or_without_a_key_is_not_kept(host: Host) -> None:
    assert kept(host, "one", "echo a; return 3") == "a\nended 3\n"
    assert kept(host, "one", "echo b") == "b\nended 0\n"
    assert kept(host, "", "echo c") == "c\nended 0\n"
    assert kept(host, "", "echo d") == "d\nended 0\n"


@pytest.mark.parametrize(
    "said", ["", "one\n", "a b\n\n  c\\n\n", "x" * 1500 + "\n", "y" * 80_000 + "\nz\n"]
)
def test_an_answer_of_any_length_is_kept_as_it_was(host: Host, said: str) -> None:
    (host.folder / "said").write_text(said)
    want = f"{said}ended 0\n"
    assert kept(host, "1 key *", f"cat {host.folder}/said") == want
    assert kept(host, "1 key *", "echo another") == want
    assert kept(host, "1 key x", "echo another") == "another\nended 0\n"


def modules(folder: Path, script: str) -> list[str]:
    """Run what ``KO`` defines over folders of two kernels."""
    text = f"{module_files.KO}\n{script}".replace("/lib/modules", str(folder / "modules"))
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "G": str(folder)}
    done = subprocess.run(["sh", "-c", text], env=environment, capture_output=True, check=False)
    assert not done.stderr
    return done.stdout.decode().replace(str(folder / "modules"), "").splitlines()


def test_a_module_is_found_by_the_names_of_its_own_kernel_and_what_modinfo_says_is_kept(
    tmp_path: Path,
) -> None:
    for kernel, files in {
        "6.1": "extra/nvidia-modeset.ko extra/nvidia.ko.xz kernel/nvidia-peermem.ko",
        "6.9": "updates/nvidia-current.ko updates/gdrdrv.ko",
    }.items():
        folder = tmp_path / "modules" / kernel
        for file in files.split():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text("")
        (folder / "modules.dep").write_text("".join(f"{file}: x.ko\n" for file in files.split()))
    modinfo = tmp_path / "modinfo"
    modinfo.write_text(
        f"#!/bin/sh\necho called >>{tmp_path}/calls\n"
        'for f; do printf "filename:       %s\\nversion:        %s\\nfirmware: x\\n" "$f" "v*-${f##*/}"; done\n'
    )
    modinfo.chmod(0o755)
    names = "nvidia 'nvidia-current*'"
    assert modules(tmp_path, f'ko 6.1 {names}; echo "$module_file"') == ["/6.1/extra/nvidia.ko.xz"]
    assert modules(tmp_path, f'ko 6.9 {names}; echo "$module_file"') == [
        "/6.9/updates/nvidia-current.ko"
    ]
    assert modules(tmp_path, "ko 6.1 gdrdrv || echo none") == ["none"]
    assert modules(tmp_path, "ko 6.9 'nvidia[-_]peermem' || echo none") == ["none"]
    assert modules(tmp_path, "ko 6 nvidia || echo none") == ["none"]
    found = "ko 6.1 'nvidia[-_]peermem' && about \"$module_file\" '%s\\n'"
    assert modules(tmp_path, found) == ["version:        v*-nvidia-peermem.ko"]
    assert modules(tmp_path, "set -- 'a  b' c; about /x '%s'; echo $1$#") == ["a b2"]
    assert (tmp_path / "calls").read_text().split() == ["called"]
