"""A machine that runs libvirt, without one: namespaces of its own, so that nothing stays.

libvirtd, virtlogd, dnsmasq, qemu, networks, firewall rules and the storage pool all live in mount, pid
and network namespaces that end with one process, however the test ends. libvirt's state, Vagrant's boxes
and the copy of the checkout lie in one folder.

/dev/kvm is not used: virtual machines run under qemu's software emulation, which is what the one line
in ``VAGRANT_HOME/Vagrantfile`` says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from vagrantbox import GUEST, NAME, PORT, Box

from gpustate_lab import images
from gpustate_lab.command import search_path
from gpustate_lab.requirements import PROOF_PACKAGES

#: Emulation, and what makes it faster: a processor with few features, and writes that are not forced to disk.
EMULATED = """\
Vagrant.configure("2") do |config|
  config.vm.provider "libvirt" do |libvirt|
    libvirt.driver = "qemu"
    libvirt.cpu_mode = "custom"
    libvirt.cpu_model = "qemu64"
    libvirt.disk_driver cache: "unsafe"
  end
end
"""


def missing() -> list[str]:
    """What this machine lacks for the commands of ``vagrant/README.md``, as Debian packages."""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package}\\n", *PROOF_PACKAGES],
        capture_output=True,
        text=True,
    )
    return [name for name in PROOF_PACKAGES if f"ii {name}" not in done.stdout.splitlines()]


class Host:
    """Runs from :meth:`__enter__` to :meth:`__exit__`.

    Args:
        folder: for everything that is written.
        checkout: what the commands are run in; copied, so ``.vagrant`` appears in the copy alone.
        box: added to Vagrant under the name that the Vagrantfile asks for.
        environment: added to every command's.
    """

    def __init__(
        self, folder: Path, checkout: Path, box: Box, environment: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self.checkout = folder / "checkout"
        self._box = box
        self._process: subprocess.Popen[str] | None = None
        bin_folder = Path(sys.executable).parent
        self._environment = {
            **os.environ,
            "PATH": f"{bin_folder}:{search_path()}",
            "VAGRANT_HOME": str(folder / "home"),
            "VAGRANT_CHECKPOINT_DISABLE": "1",
            **environment,
        }
        for name in ("vagrant", "docs/examples"):
            ignore = shutil.ignore_patterns(".vagrant", "group_vars", "__pycache__")
            shutil.copytree(checkout / name, self.checkout / name, ignore=ignore)
        variables = self.checkout / "vagrant/group_vars/gpu.json"
        variables.parent.mkdir()
        variables.write_text(box.variables())
        (folder / "home").mkdir()
        (folder / "home/Vagrantfile").write_text(EMULATED)

    def __enter__(self) -> Host:
        unshare = [*images.NAMESPACES[:-1], "--net", "--ipc", "--uts", "--mount-proc", "--"]
        state = self.folder / "libvirt"
        state.mkdir()
        words = [str(GUEST / "host.sh"), str(state), str(self._box.www), str(PORT)]
        self._process = subprocess.Popen(
            [*unshare, "sh", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            assert self._process.stdout is not None
            first = self._process.stdout.readline()
            assert first == "ready\n", first + self._process.stdout.read()
            self.run(f"vagrant box add --name {NAME} {self._box.file}", timeout_s=300)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _init(self) -> int:
        """The process id of the first process in the namespaces."""
        assert self._process is not None
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def run(self, script: str, *, code: int = 0, folder: str = ".", timeout_s: float = 600) -> str:
        """Run sh there; return what it printed, both streams in one.

        Args:
            code: asserted with everything that was printed.
            folder: below the checkout.
        """
        enter = ["nsenter", "--target", str(self._init())]
        enter += ["--mount", "--net", "--pid", "--ipc", "--uts", "--"]
        began = time.monotonic()
        done = subprocess.run(
            [*enter, "sh", "-ec", f'cd "$0"; {script}', str(self.checkout / folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            env=self._environment,
        )
        print(f"{time.monotonic() - began:6.1f} s  exit {done.returncode}  {script}", flush=True)
        assert done.returncode == code, f"{script}: exit {done.returncode}\n{done.stdout}"
        return done.stdout
