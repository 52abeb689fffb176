"""The files of kernel modules, and what modinfo says of them: found out once, for all fragments that ask."""

from __future__ import annotations

from gpustate import shell
from gpustate.core.shared_probes import KEPT, Shared

# The modules that states ask about: NVIDIA's and those they work with, in the names that distributions give them.
_MODULES = "nvidia(-current[^/:]*|-tesla[^/:]*|-legacy[^/:]*)?|nvidia[-_](uvm|modeset|drm|peermem|fs)|gdrdrv|mlx_compat|mlx5_core|mlx5_ib|ib_core|ib_umad"
_KO = f"$(grep -soHE '^[^:]*/({_MODULES})\\.ko(\\.[a-z0-9]+)?:' /lib/modules/*/modules.dep 2>/dev/null)"
_KO_ABOUT = f"$({shell.load('ko_about', 'gpustate.probes')})"
#: Defines ``ko KERNEL PATTERN...``, which puts into ``module_file`` the path of the first module file that modprobe knows by one
#: of these names, and fails where there is none; and ``about PATH FORMAT``, which prints the lines modinfo has of that file.
KO = (
    KEPT
    + f"KO=${{KO-{_KO}}}\n"
    + f"KO_ABOUT=${{KO_ABOUT-{_KO_ABOUT}}}\n"
    + shell.load("ko", "gpustate.probes")
)
SHARED = Shared(("KO", "KO_ABOUT"), KO, f"{KEPT}KO={_KO}\nKO_ABOUT={_KO_ABOUT}\n")
