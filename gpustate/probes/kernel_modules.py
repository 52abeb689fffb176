"""One kernel module that is built beside the NVIDIA driver: on disk, in the kernel, and its source.

Three things are kept apart, for they differ in the field: what is built for each kernel that can
boot, what is loaded now, and from which source DKMS would build it again.

Sources:
    modules.dep(5), modinfo(8), modprobe(8) (``--dump-modversions``), dkms(8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.formats import dkms, keyed
from gpustate.probes.module_files import KO

_SCRIPT = KO + shell.load("kernel_modules", "gpustate.probes")


@dataclass(frozen=True, slots=True)
class Kmod:
    """One module of a node.

    Args:
        loaded: version in the kernel that runs; "" where it has none, ``None``: not loaded.
        stale: another build is loaded than lies on disk.
        built: version on disk for each kernel that can boot; ``None``: none was built.
        path: of the module on disk for the kernel that runs.
        headers: kernels for which one can be built.
        running: release that runs; "" in an image.
        description: of the module for the running kernel (of any, in an image).
        symbols: lines of ``modprobe --dump-modversions`` that were asked for.
        sources: versions below /usr/src that DKMS can build.
        error: first complaint of the compiler in the last build that failed.
    """

    loaded: str | None = None
    stale: bool = False
    built: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    path: str = ""
    headers: tuple[str, ...] = ()
    running: str = ""
    description: str = ""
    symbols: str = ""
    sources: tuple[str, ...] = ()
    error: str = ""

    @property
    def version_on_disk(self) -> str | None:
        """Version on disk for the kernel that runs."""
        return self.built.get(self.running)


@dataclass(frozen=True, slots=True)
class KernelModuleQuery(Query[Kmod]):
    """Everything :class:`Kmod` holds, in one fragment.

    Args:
        module: name, with dashes or underscores.
        dkms: what DKMS calls the package of sources.
        symbols: those whose checksums the module file is asked for.
    """

    module: str
    dkms: str
    symbols: tuple[str, ...] = ()

    def script(self) -> str:
        under = self.module.replace("-", "_")
        return shell.fill(
            _SCRIPT,
            UNDER=under,
            EITHER=under.replace("_", "[-_]"),
            DKMS=self.dkms,
            SYMBOLS="|".join(self.symbols),
            CAUSE=dkms.CAUSE_ERE,
        )

    def parse(self, answer: Answer) -> Kmod:
        keys = keyed.lists(answer.text)
        built: dict[str, str | None] = {}
        headers: list[str] = []
        running, description, on_disk, module = "", "", "", ""
        for line in keys.get("kernel", []):
            parts = line.split("|")
            if len(parts) < 4:
                continue
            kernel, runs, has_headers, path = parts[:4]
            about = {key: value.strip() for key, _, value in (p.partition(":") for p in parts[4:])}
            built[kernel] = about.get("version", "") if path else None
            if has_headers:
                headers.append(kernel)
            if runs:
                running, module, on_disk = kernel, path, about.get("srcversion", "")
            if path and (runs or not description):
                description = about.get("description", "")
        version, _, source = keyed.first(keys, "loaded").partition("|")
        disk = built.get(running) or ""
        stale = bool(
            "loaded" in keys
            and (
                (source and on_disk and source != on_disk) or (version and disk and version != disk)
            )
        )
        return Kmod(
            loaded=version if "loaded" in keys else None,
            stale=stale,
            built=built,
            path=module,
            headers=tuple(headers),
            running=running,
            description=description,
            symbols="\n".join(keys.get("symbol", [])),
            sources=tuple(keys.get("source", [])),
            error=dkms.first_error("\n".join(keys.get("error", []))) or "",
        )

    def placeholder(self) -> Kmod:
        return Kmod()
